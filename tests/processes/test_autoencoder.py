"""The sparse autoencoder trained by real processes, by both strategies."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from .conftest import Operator
from .untrained import first_loss

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


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["downpour", "sandblaster"])
def test_it_learns_to_rebuild(strategy: str, operator: Operator) -> None:
    of, more = STRATEGIES[strategy]
    job = operator.write_job(JOB.format(strategy=of, more=more))
    summary = operator.trained("digits", job)
    assert summary["test_loss"] < 0.5 * first_loss(job)
    assert summary["test_accuracy"] is None
    tensors = load_file(operator.folder / "runs" / "digits" / "model.safetensors")
    assert {name: values.shape for name, values in tensors.items()} == {"weight": (3, 3, 8, 2, 2, 4), "alpha": (1,)}
    assert np.isfinite(tensors["weight"]).all()
    report = operator.start("report", "report", "runs/digits", "--output", "drawn")
    assert report.ends() == 0, report.log.read_text()
    assert (operator.folder / "drawn" / "filters.png").stat().st_size > 0
