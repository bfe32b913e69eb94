"""A job of the digits, whose data come with the product, run by the commands of a user and an operator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.dbelief.launch.processes import soon

PROGRAM = [sys.executable, "-P", "-m", "dbelief"]
SAMPLES = 1_257
"""Of an epoch."""
JOB = """
name: digits
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: adagrad, rate: 0.05}}}}
limits: {{epochs: {epochs}}}
shards: 2
replication: {replication}
replicas: 2
snapshots: {{every_s: 1}}
"""
SHORT, LONG = 6, 400
FLOOR = 0.9
"""Test accuracy that the digits reach with any seed."""


class DigitsJob:
    """Commands in a folder, on a backend.

    Parameters
    ----------
    on
        Options that name the backend.
    before
        Start of each command line, as one that enters a network namespace.
    files
        Folder of the run's files; None: where other commands find the job.
    third
        In the name of the third worker.
    """

    def __init__(
        self,
        folder: Path,
        on: Sequence[str],
        environment: Mapping[str, str],
        before: Sequence[str] = (),
        files: Path | None = None,
        third: str = "worker-2",
    ) -> None:
        self.folder, self._on, self._environment, self._before = folder, on, environment, before
        self.run = folder / "runs" / "digits"
        self.files, self.third = files or self.run, third
        self._started: list[subprocess.Popen[str]] = []

    def train(self, epochs: int, *more: str, replication: int = 1) -> subprocess.Popen[str]:
        """Start `dbelief train`."""
        (self.folder / "job.yaml").write_text(JOB.format(epochs=epochs, replication=replication))
        words = ["train", "job.yaml", *self._on, "--quiet", *more]
        return self.start(*PROGRAM, *words)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command there."""
        whole = [*self._before, *command]
        own = subprocess.Popen(whole, cwd=self.folder, env=self._environment, stderr=subprocess.PIPE, text=True)
        self._started.append(own)
        return own

    def end(self) -> None:
        """End the commands that still run, after a test that failed."""
        for own in self._started:
            own.kill()
            own.communicate(timeout=60)

    def operate(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the operator."""
        command = [*self._before, *PROGRAM, *words]
        return subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )

    @property
    def trains(self) -> bool:
        """Whether workers have joined, and samples are counted."""
        asked = self.operate("status", "runs/digits", "--json") if (self.run / "address").exists() else None
        return asked is not None and asked.returncode == 0 and json.loads(asked.stdout)["samples"] > 0

    def has(self, member: str) -> bool:
        """Whether the job has a member of this name."""
        return member in self.operate("status", "runs/digits").stdout

    @property
    def summary(self) -> dict[str, Any]:
        """Of the run, which has ended."""
        found: dict[str, Any] = json.loads((self.files / "summary.json").read_text())
        return found


def ends_well(job: subprocess.Popen[str], timeout_s: float) -> str:
    """Wait for a command's end, which is to be a good one; what it said."""
    _, said = job.communicate(timeout=timeout_s)
    assert job.returncode == 0, said
    return said


def scaled_stopped_and_resumed(job: DigitsJob) -> dict[str, Any]:
    """Scale a job while it trains, stop it, and resume it for two epochs; the summary at its end."""
    training = job.train(LONG)
    soon(lambda: job.trains, "no samples are counted")
    assert job.operate("scale", "workers", "3", "runs/digits").returncode == 0
    soon(lambda: job.has(job.third), "there is no third worker")
    stopped = job.operate("stop", "runs/digits")
    assert stopped.returncode == 0, stopped.stderr
    ends_well(training, 60)
    before = job.summary
    assert before["reason"] == "stopped by dbelief stop"
    ends_well(job.train(LONG, "--resume", "--set", f"limits.epochs={int(before['epochs']) + 2}"), 120)
    return {"epochs_before": before["epochs"], **job.summary}
