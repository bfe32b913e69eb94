"""A whole job whose replicas compute on a CUDA device: needs CuPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.arrays.backend import Backend
from dbelief.cli.inspect_run import evaluate_run
from dbelief.launch.train import train

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.mark.gpu
@pytest.mark.processes
def test_the_digits_are_learnt_on_a_device(gpu: Backend, tmp_path: Path) -> None:
    summary = train(DIGITS, output=str(tmp_path), device="cuda").summary
    run = tmp_path / "digits"
    for number in range(summary.replicas):
        assert f"replica {number} of job digits, on {gpu.name}\n" in (run / "logs" / f"worker-{number}.log").read_text()
    assert summary.test_accuracy is not None
    assert summary.test_accuracy >= 0.95
    assert evaluate_run(run, "test")["accuracy"] == summary.test_accuracy
    job = run / "job.yaml"
    job.write_text(job.read_text().replace("device: cuda", "device: cpu"))
    assert evaluate_run(run, "test")["accuracy"] == pytest.approx(summary.test_accuracy, abs=0.005)
