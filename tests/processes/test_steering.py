"""Scaling, status and orderly stop of a running job, by commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dbelief.cli.job_control import scale_job
from dbelief.monitor.status import JobLocation, get_status

from .conftest import Operator, dbelief, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: steered
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: STRATEGY, batch: 16, rule: {name: sgd, rate: 0.01}}
evaluate: {every: 1257}
limits: {wall_s: 300}
shards: 1
replicas: 2
"""


def training(run: Path) -> list[int]:
    """Numbers of the workers that train."""
    told = get_status(JobLocation.of(str(run)))
    assert isinstance(told, dict)
    return sorted(m["id"] for m in told["members"] if m["role"] == "worker" and m["state"] == "training")


@pytest.mark.parametrize("strategy", ["downpour", "sync-sgd"])
def test_a_job_is_scaled_and_ended(operator: Operator, strategy: str) -> None:
    operator.compute_wait_s = 0.05
    train = operator.start("train", "train", "--quiet", str(operator.write_job(JOB.replace("STRATEGY", strategy))))
    run = operator.folder / "runs" / "steered"
    operator.until_samples("steered", 100)
    assert "3 replicas wanted, 2 there now" in dbelief("scale", "workers", "3", str(run))
    wait_for(lambda: training(run) == [0, 1, 2], "a third worker")
    scale_job(str(run), "replica", 1)
    wait_for(lambda: training(run) == [0], "one worker that is left")

    def gone() -> list[dict[str, Any]]:
        return [e for e in operator.events("steered", "member") if e["what"] in ("left", "died")]

    wait_for(lambda: len(gone()) == 2, "both to have left")
    assert sorted((e["id"], e["what"], e["reason"]) for e in gone()) == [
        (1, "left", "asked to end"),
        (2, "left", "asked to end"),
    ]
    told = dbelief("stop", str(run), "--reason", "seen enough")
    assert told.startswith("job steered ended: seen enough; kept: model.safetensors and ")
    assert train.ends() == 0, train.log.read_text()
    assert operator.summary("steered")["reason"] == "seen enough"
    assert "worker-2 is started: 3 workers are wanted" in train.log.read_text()


def test_separate_workers_cannot_be_scaled_and_job_stops(operator: Operator) -> None:
    coordinator, address = operator.coordinator(operator.write_job(JOB.replace("STRATEGY", "downpour")))
    roles = operator.members(address, shards=1, workers=2)
    operator.until_samples("steered", 100)
    assert "docker compose up --detach --no-recreate --scale worker=3" in dbelief(
        "scale", "workers", "3", address, code=1
    )
    shown = operator.start("top", "top", address)
    shown.said(r"(steered: training \|.*\| 2 replicas)")
    told = json.loads(dbelief("status", "--json", address))
    (shard,) = (member for member in told["members"] if member["role"] == "ps")
    assert shard["parameters"] == 650
    assert shard["segments"] >= 1
    assert sum(row["pushes"] for row in told["staleness"]) > 0
    assert dbelief("stop", address).startswith("job steered ended: stopped by dbelief stop; kept: ")
    assert [role.ends() for role in (coordinator, *roles)] == [0, 0, 0, 0]
    assert shown.ends() == 0
