"""The sparse autoencoder trained by real processes, by both strategies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dbelief.arrays.backend import select_backend
from dbelief.data import load
from dbelief.evaluation.evaluate import evaluate
from dbelief.job import load_job
from dbelief.training.session import build_model, initial_values

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: digits
model: {{autoencoder: {{window: 4, block: 2, maps: 2, pool: 3, image: [8, 8, 1]}}}}
data: {{source: digits}}
strategy: {strategy}
evaluate: {{every: null, keep: last}}
{more}
shards: 2
replicas: 2
device: cpu
"""
STRATEGIES = {
    "downpour": ("{name: downpour, batch: 32, rule: {name: momentum, rate: 0.0005, mu: 0.9}}", "limits: {epochs: 15}"),
    "sandblaster": ("{name: sandblaster, portion: 100, iterations: 8}", ""),
}


def untrained(job_file: Path) -> float:
    """Mean loss of the initial values on the test set."""
    job, backend = load_job(job_file), select_backend("cpu")
    data = load(job.data, job.folder)
    model, _ = build_model(job, data, backend)
    layout, initial = initial_values(job, model)
    assert data.test is not None
    quality = evaluate(model, layout.views(initial), data.test, layout, backend)
    assert quality.accuracy is None
    return quality.loss


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["downpour", "sandblaster"])
def test_it_learns_to_rebuild(strategy: str, operator: Operator) -> None:
    of, more = STRATEGIES[strategy]
    job = operator.write_job(JOB.format(strategy=of, more=more))
    summary = operator.trained("digits", job)
    assert summary["test_loss"] < 0.5 * untrained(job)
    assert summary["test_accuracy"] is None
    tensors = load_file(operator.folder / "runs" / "digits" / "model.safetensors")
    assert {name: values.shape for name, values in tensors.items()} == {"weight": (3, 3, 8, 2, 2, 4), "alpha": (1,)}
    assert np.isfinite(tensors["weight"]).all()
    report = operator.start("report", "report", "runs/digits", "--output", "drawn")
    assert report.ends() == 0, report.log.read_text()
    assert (operator.folder / "drawn" / "filters.png").stat().st_size > 0
