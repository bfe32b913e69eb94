"""A script, and a shard, that are killed midway: of the samples none is skipped, and one push is torn at most."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

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
def test_killed_midway(victim: str, workers: int, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    log = tmp_path / "steps"
    words = ["run", "--quiet", "--job", "job.yaml", "--workers", str(workers), str(LOGGED), str(log), "0.02"]
    with subprocess.Popen([sys.executable, "-m", "dbelief", *words], cwd=tmp_path) as launcher:
        until_s = time.monotonic() + 120
        while len(steps(log)) < 60:
            assert launcher.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.02)
        killed = steps(log)[-1][1] if victim == "script" else leader(tmp_path / "runs" / "killed")
        os.kill(killed, signal.SIGKILL)
        assert launcher.wait(240) == 0
    summary = json.loads((tmp_path / "runs" / "killed" / "summary.json").read_text())
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


def leader(run: Path) -> int:
    """Process of the shard that leads: its name is in the run's events."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (name,) = [event["name"] for event in events if event.get("role") == "shard" and event.get("what") == "joined"]
    found = subprocess.run(
        ["pgrep", "-f", f"dbelief ps .*--name {name}( |$)"], capture_output=True, text=True, check=True
    )
    pids = [int(pid) for pid in found.stdout.split()]
    return next(pid for pid in pids if str(run.parent.parent) in os.readlink(f"/proc/{pid}/cwd"))
