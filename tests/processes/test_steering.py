"""Scaling, status and orderly stop of a running job, by commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbelief.cli.job_control import scale_job
from dbelief.monitor.status import JobLocation, get_status

from .conftest import Operator, wait_for

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


def dbelief(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-P", "-m", "dbelief", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


def training(run: Path) -> list[int]:
    """Numbers of the workers that train."""
    told = get_status(JobLocation.of(str(run)))
    assert isinstance(told, dict)
    return sorted(m["id"] for m in told["members"] if m["role"] == "worker" and m["state"] == "training")


@pytest.mark.parametrize("strategy", ["downpour", "sync-sgd"])
def test_a_job_is_scaled_and_ended(operator: Operator, write_job: Callable[[str], Path], strategy: str) -> None:
    operator.compute_wait_s = 0.05
    train = operator.start("train", "train", "--quiet", str(write_job(JOB.replace("STRATEGY", strategy))))
    run = operator.folder / "runs" / "steered"
    operator.until_samples("steered", 100)
    assert "3 replicas wanted, 2 there now" in dbelief("scale", "workers", "3", str(run))
    wait_for(lambda: True if training(run) == [0, 1, 2] else None, "a third worker")
    scale_job(str(run), "replica", 1)
    wait_for(lambda: True if training(run) == [0] else None, "one worker that is left")

    def gone() -> list[dict[str, Any]] | None:
        events = [e for e in operator.events("steered") if e["event"] == "member" and e["what"] in ("left", "died")]
        return events if len(events) == 2 else None

    left = wait_for(gone, "both to have left")
    assert sorted((e["id"], e["what"], e["reason"]) for e in left) == [
        (1, "left", "asked to end"),
        (2, "left", "asked to end"),
    ]
    told = dbelief("stop", str(run), "--reason", "seen enough")
    assert told.startswith("job steered ended: seen enough; kept: model.safetensors and ")
    assert train.ends() == 0, train.log.read_text()
    assert operator.summary("steered")["reason"] == "seen enough"
    assert "worker-2 is started: 3 workers are wanted" in train.log.read_text()


def test_separate_workers_cannot_be_scaled_and_job_stops(operator: Operator, write_job: Callable[[str], Path]) -> None:
    coordinator, address = operator.coordinator(write_job(JOB.replace("STRATEGY", "downpour")))
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
