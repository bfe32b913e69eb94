"""Trainers of other libraries: one replica equals the framework alone, and of two one may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import Operator, wait_for

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytest.importorskip("accelerate", reason="the trainers extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

SCRIPT = Path(__file__).with_name("trainers.py")
FRAMEWORKS = ("transformers", "lightning", "accelerate")
SAMPLES = 100
JOB = """
name: trainers
model: {{source: script}}
data: {{source: script, train: 100, validation: 20}}
strategy: {strategy}
limits: {{epochs: {epochs}}}
deadlines: {{beat_s: 10, lease_s: 1}}
seed: 3
"""
DILOCO = "{{name: diloco, batch: 8, steps: 2, outer: {outer}}}"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_replica_equals_the_framework_alone(framework: str, tmp_path: Path) -> None:
    """With accumulated gradients, and a last step of an epoch that has fewer samples."""
    words = [framework, str(tmp_path), "2"]
    subprocess.run([sys.executable, str(SCRIPT), "plain", *words], check=True, cwd=tmp_path)
    job = JOB.format(strategy=DILOCO.format(outer="{name: sgd, rate: 1}"), epochs=2)
    (tmp_path / "job.yaml").write_text(job)
    launched = [sys.executable, "-m", "dbelief", "run", "--quiet", "--job", "job.yaml", str(SCRIPT), "script", *words]
    subprocess.run(launched, check=True, cwd=tmp_path)
    assert [*tmp_path.glob("trained/*")] == [], "checkpoints are the job's"
    plain, script = (torch.load(tmp_path / f"{way}.pt") for way in ("plain", "script"))
    assert len((tmp_path / "steps").read_text().splitlines()) == 26
    for name, values in plain.items():
        torch.testing.assert_close(script[name], values, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("framework", "strategy", "accumulate"),
    [
        ("transformers", DILOCO.format(outer="{name: nesterov, rate: 0.7, mu: 0.6}"), 2),
        ("lightning", "{name: async-easgd, batch: 4, rate: 0.1, period: 2}", 1),
        ("lightning", DILOCO.format(outer="{name: nesterov, rate: 0.7, mu: 0.6}"), 1),
        ("accelerate", "{name: downpour, batch: 8, rule: {name: add}, staleness: 0, warm_start: null}", 2),
    ],
)
def test_one_of_two_is_killed_midway(
    framework: str, strategy: str, accumulate: int, operator: Operator, tmp_path: Path
) -> None:
    epochs = 24
    job = str(operator.write_job(JOB.format(strategy=strategy, epochs=epochs)))
    log, words = tmp_path / "steps", ["script", framework, str(tmp_path), str(accumulate)]
    launcher = operator.start("run", "run", "--quiet", "--job", job, "--workers", "2", str(SCRIPT), *words)

    def processes() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    wait_for(lambda: len(processes()) >= epochs * 3 and len({*processes()}) == 2, "some steps, by two")
    os.kill(int(processes()[-1]), signal.SIGKILL)
    assert launcher.ends() == 0, launcher.log.read_text()
    summary: dict[str, Any] = operator.summary("trainers")
    assert len(summary["died"]) == 1
    assert summary["samples"] == epochs * SAMPLES
    assert summary["pushes_lost"] == 0
    assert summary["validation_loss"] < 2.0, "of log(12) = 2.5 at the start"
