"""Asynchronous SGD by its names, with real processes: it learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Operator

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: asynchronous
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{{strategy}, batch: 16}}
limits: {{epochs: 20}}
shards: 2
replicas: 3
"""


@pytest.mark.parametrize(
    "strategy", ["name: async-sgd, rate: 0.1", "name: async-msgd, rate: 0.01", "name: hogwild-sgd, rate: 0.1"]
)
def test_it_learns(strategy: str, operator: Operator, write_job: Callable[[str], Path]) -> None:
    train = operator.start("train", "train", str(write_job(JOB.format(strategy=strategy))), "--quiet")
    assert train.ends() == 0, train.log.read_text()
    summary = operator.summary("asynchronous")
    assert summary["samples"] == 20 * 1257
    assert summary["pushes_lost"] == 0
    assert summary["staleness_mean"] > 0
    assert summary["test_accuracy"] > 0.94
