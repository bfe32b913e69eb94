"""A stopped run resumes with any number of shards, and skips a torn snapshot set."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from .conftest import Operator, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: moved
model: {layers: [{dense: 96}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, lease: 16, rule: {name: adam, rate: 0.005}}
limits: {epochs: 2}
evaluate: {every: 400, keep: best}
snapshots: {every_s: null}
shards: 2
replicas: 1
"""


def sets(folder: Path) -> dict[str, int]:
    """How many shards wrote each complete set, from old to new."""
    found = sorted(path.parent for path in (folder / "runs" / "moved" / "snapshots").glob("*/set.json"))
    return {path.name: len(list(path.glob("shard-*.json"))) for path in found}


def evaluated(operator: Operator, before: int, samples: int) -> bool:
    """Whether validation data were looked at, at so many samples or later, since there were `before` events."""
    events = operator.events("moved")[before:]
    return any(e["event"] == "evaluation" and e["samples"] >= samples for e in events)


def last_evaluation(operator: Operator, job: str) -> tuple[int, float]:
    """Samples and loss of the evaluation after the last sample; earlier ones fall on whatever sample is current."""
    last = [e for e in operator.events(job, "evaluation") if e["set"] == "validation"][-1]
    return last["samples"], last["loss"]


@pytest.mark.timeout(600)  # four whole clusters, one after the other
def test_run_resumes_with_other_shard_counts(operator: Operator) -> None:
    job = str(operator.write_job(JOB))
    operator.compute_wait_s = 0.02  # a run must not be done before its signal
    for shards in (2, 3):
        resume = ["--resume"] * (shards > 2)
        before = len(operator.events("moved"))
        train = operator.start(f"train-{shards}", "train", job, "--quiet", *resume, "--set", f"shards={shards}")
        operator.until_samples("moved", 400 * shards, before)
        wait_for(partial(evaluated, operator, before, 400 * shards), "the evaluation that is due")
        train.process.send_signal(signal.SIGINT)
        assert train.ends() == 130
        assert operator.summary("moved")["samples"] >= 400 * shards
    made = sets(operator.folder)
    assert sorted(made.values()) == [2, 3]
    newest = operator.folder / "runs" / "moved" / "snapshots" / max(made)
    (newest / "shard-1.safetensors").write_bytes(b"")

    last = operator.start("train-1", "train", job, "--quiet", "--resume", "--set", "shards=1")
    assert last.ends() == 0
    assert last.said(r"snapshot set (\S+) is damaged and was quarantined; restoring") == max(made)
    summary = operator.summary("moved")
    assert summary["samples"] == 2 * 1257
    assert summary["pushes_trained_twice"] == 0
    assert summary["test_accuracy"] > 0.8

    operator.trained("whole", Path(job), "--set", "name=whole", "--set", "shards=1")
    losses = [last_evaluation(operator, name) for name in ("moved", "whole")]
    assert losses[0] == losses[1], "one replica is sequential: the same bits, wherever they lie"
