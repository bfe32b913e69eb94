"""A script, and a shard, that are killed midway: of the samples none is skipped, and one push is torn at most."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import Operator, child, wait_for

pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

LOGGED = Path(__file__).with_name("logged.py")
SAMPLES, EPOCHS = 240, 4
JOB = f"""
name: killed
model: {{source: script}}
data: {{source: script, train: {SAMPLES}}}
strategy: {{name: downpour, batch: 10, rule: {{name: sgd, rate: 0.05}}, warm_start: null}}
limits: {{epochs: {EPOCHS}}}
replication: 2
deadlines: {{beat_s: 2, lease_s: 1}}
"""


def steps(log: Path) -> list[list[Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize(("victim", "workers"), [("script", 1), ("script", 2), ("ps", 1)])
def test_killed_midway(victim: str, workers: int, operator: Operator, tmp_path: Path) -> None:
    job, log = str(operator.write_job(JOB)), tmp_path / "steps"
    words = ["--quiet", "--job", job, "--workers", str(workers), str(LOGGED), str(log), "0.02"]
    launcher = operator.start("run", "run", *words)
    wait_for(lambda: len(steps(log)) >= 60, "60 steps")
    killed = steps(log)[-1][1] if victim == "script" else leader(operator, launcher.process.pid)
    os.kill(killed, signal.SIGKILL)
    assert launcher.ends() == 0, launcher.log.read_text()
    summary = operator.summary("killed")
    assert summary["samples"] == EPOCHS * SAMPLES
    assert summary["pushes_lost"] == 0
    torn = summary["pushes_trained_twice"]
    assert torn <= (victim == "script")
    begun, done = (Counter(samples(log, what)) for what in ("begun", "done"))
    everything = {(epoch, place) for epoch in range(EPOCHS) for place in range(SAMPLES)}
    assert set(begun) == everything, "none is skipped"
    # A push that was acknowledged, or torn, and whose end the killed script could not log any more.
    unlogged = begun - done
    assert sum(unlogged.values()) <= 10 * (victim == "script")
    assert sum((begun - Counter(everything)).values()) <= sum(unlogged.values()), "none else is trained twice"


def samples(log: Path, what: str) -> list[tuple[int, int]]:
    rows = [row for row in steps(log) if row[0] == what]
    return [(epoch, place) for _, _, epoch, start, stop in rows for place in range(start, stop)]


def leader(operator: Operator, launcher: int) -> int:
    """Process of the shard that leads: its name is in the run's events."""
    members = operator.events("killed", "member")
    (name,) = [event["name"] for event in members if event["role"] == "shard" and event["what"] == "joined"]
    return child(launcher, f"--name {name} ")
