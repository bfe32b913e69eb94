"""A whole job whose replicas compute on a CUDA device: needs CuPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.arrays.backend import select_backend
from dbelief.cli.inspect_run import evaluate_run
from dbelief.errors import JobError
from dbelief.launch.train import train

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.fixture
def device() -> str:
    try:
        select_backend("cuda")
    except JobError as error:
        pytest.skip(str(error))
    return "cuda"


@pytest.mark.gpu
@pytest.mark.processes
def test_the_digits_are_learnt_on_a_device(device: str, tmp_path: Path) -> None:
    summary = train(DIGITS, output=str(tmp_path), device=device).summary
    run = tmp_path / "digits"
    for number in range(summary.replicas):
        backend = select_backend(device).name  # type: ignore[arg-type]
        assert f"replica {number} of job digits, on {backend}\n" in (run / "logs" / f"worker-{number}.log").read_text()
    assert summary.test_accuracy is not None
    assert summary.test_accuracy >= 0.95
    assert evaluate_run(run, "test")["accuracy"] == summary.test_accuracy
    job = run / "job.yaml"
    job.write_text(job.read_text().replace(f"device: {device}", "device: cpu"))
    assert evaluate_run(run, "test")["accuracy"] == pytest.approx(summary.test_accuracy, abs=0.005)
