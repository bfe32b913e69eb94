"""Resharding of a training job: its result is, bit for bit, that of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .conftest import Operator, Role, child, dbelief, parameters

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: resized
model: {layers: [{dense: 256}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: STRATEGY, batch: 16, rule: {name: RULE, rate: 0.01}MORE}
limits: {epochs: 10000}
evaluate: {every: 125700}
shards: 2
replicas: 1
snapshots: {every_s: 1}
deadlines: {beat_s: 5}
"""


def job(strategy: str = "downpour", rule: str = "adagrad", more: str = ", warm_start: null") -> str:
    """The job's text."""
    return JOB.replace("STRATEGY", strategy).replace("RULE", rule).replace("MORE", more)


def until_scaled(operator: Operator, times: int) -> dict[str, Any]:
    operator.until("resized", "scaled", times)
    return operator.events("resized", "scaled")[-1]


def stop(operator: Operator, train: Role) -> dict[str, Any]:
    """End the job in good order, some time after its last change; what it came to."""
    operator.until_samples("resized", 500, since=len(operator.events("resized")))
    dbelief("stop", str(operator.folder / "runs" / "resized"))
    assert train.ends() == 0, train.log.read_text()
    return operator.summary("resized")


def let_be(operator: Operator, path: Path, samples: int) -> dict[str, bytes]:
    """What the job comes to after so many samples without any of this."""
    settings = ["--set", "output=alone", "--set", f"limits.samples={samples}"]
    train = operator.start("alone", "train", "--quiet", *settings, str(path))
    assert train.ends() == 0, train.log.read_text()
    return parameters(operator.folder / "alone" / "resized")


@pytest.mark.parametrize(
    ("strategy", "rule", "more"),
    [
        ("downpour", "adagrad", ", warm_start: null"),
        ("downpour", "momentum", ", warm_start: null, staleness: 0"),
        ("downpour", "adam", ", warm_start: null, staleness: 1"),
        ("sync-sgd", "momentum", ""),
    ],
)
def test_two_shards_five_and_three_come_to_the_same_bits(
    operator: Operator, strategy: str, rule: str, more: str
) -> None:
    path = operator.write_job(job(strategy, rule, more=more))
    train = operator.start("train", "train", "--quiet", str(path))
    run = operator.folder / "runs" / "resized"
    operator.until_samples("resized", 1000)
    assert "5 shards wanted, 2 there now" in dbelief("scale", "ps", "5", str(run))
    grown = until_scaled(operator, 1)
    assert (grown["from"], grown["to"]) == (2, 5)
    assert "3 shards wanted, 5 there now" in dbelief("scale", "ps", "3", str(run))
    shrunk = until_scaled(operator, 2)
    assert (shrunk["from"], shrunk["to"]) == (5, 3)
    for one in ("ps-3", "ps-4"):
        train.said(rf"({one} has ended: 3 shards are wanted)")
    summary = stop(operator, train)
    assert parameters(operator.folder / "runs" / "resized") == let_be(operator, path, summary["samples"])
    assert "ps-4 is started: 5 shards are wanted" in train.log.read_text()
    assert summary["shards"] == 3
    assert not summary["members_lost"]
    assert strategy == "sync-sgd" or not summary["pushes_lost"]  # there: steps that a stop came between


@pytest.mark.parametrize("who", ["ps-0", "ps-4", "dbelief coordinator"])
def test_resharding_completes_after_kills_while_migrating(operator: Operator, who: str) -> None:
    path = operator.write_job(job())
    train = operator.start("train", "train", "--quiet", str(path))
    run = operator.folder / "runs" / "resized"
    operator.until_samples("resized", 1000)
    dbelief("scale", "ps", "5", str(run))
    if who == "ps-4":
        train.said("(ps-4 is started)")
    else:
        operator.until("resized", "shard_taken_in", times=3)
    os.kill(child(train.process.pid, who), signal.SIGKILL)
    if who == "dbelief coordinator":  # resharding may have been complete before the kill
        operator.until("resized", "takeover")
    until_scaled(operator, 1)
    dbelief("scale", "ps", "2", str(run))
    until_scaled(operator, 2)
    summary = stop(operator, train)
    assert summary["shards"] == 2
    assert json.loads(dbelief("evaluate", str(run)))["accuracy"] > 0.85
    assert who == "ps-0" or not summary["pushes_lost"]
