"""A batch method that begins where Downpour SGD ended, by real processes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: {name}
model: {{layers: [{{dense: 24}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {strategy}
limits: {{epochs: {epochs}}}
evaluate: {{keep: last}}
shards: 2
replicas: 1
{more}
"""
DOWNPOUR = "{name: downpour, batch: 16, rule: {name: adagrad, rate: 0.05}}"
BATCH = "{name: sandblaster, portion: 256, iterations: 1}"


@pytest.mark.long
def test_a_batch_method_begins_where_sgd_ended(operator: Operator) -> None:
    def trained(name: str, strategy: str, epochs: int, more: str = "") -> dict[str, Any]:
        job = operator.write_job(JOB.format(name=name, strategy=strategy, epochs=epochs, more=more))
        return operator.trained(name, job)

    first = trained("first", DOWNPOUR, epochs=1)["test_loss"]
    trained("fresh", BATCH, epochs=50)
    summary = trained("second", BATCH, epochs=50, more="start_from: runs/first")
    fresh, second = (float(operator.events(name, "iteration")[0]["loss"]) for name in ("fresh", "second"))
    print(f"SGD ended at {first:.3f}; one iteration from there {second:.3f}, from initial values {fresh:.3f}")
    assert first < math.log(10) / 2
    assert second < 1.2 * first
    assert second < fresh / 2
    assert summary["start_from"] == str(operator.folder / "runs" / "first")
    log = (operator.folder / "runs" / "second" / "logs" / "worker-0.log").read_text()
    assert f"starts from {operator.folder / 'runs' / 'first' / 'model.safetensors'}" in log
