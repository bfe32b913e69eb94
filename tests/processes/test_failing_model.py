"""A model whose code fails at some sample of the training data: its workers are not started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Operator

pytestmark = [pytest.mark.processes, pytest.mark.long]

MODEL = """
import numpy as np

class Sum:
    def parameters(self, rng):
        return {"w": np.zeros(64, np.float32)}

    def loss_and_gradient(self, views, batch, out):
        out["w"][:] = 0
        if batch.targets[0] == 9:
            raise IndexError("index out of range in self")
        return 1.0
"""
JOB = """
name: digits
model: {{python: "{model}:Sum"}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 1, rule: {{name: sgd, rate: 0.1}}}}
limits: {{epochs: 1}}
replicas: 2
device: cpu
"""


def test_the_samples_are_named(operator: Operator, tmp_path: Path) -> None:
    model = tmp_path / "own.py"
    model.write_text(MODEL)
    train = operator.start("train", "train", str(operator.write_job(JOB.format(model=model))), "--quiet")
    assert train.ends() == 1, train.log.read_text()
    log = train.log.read_text()
    assert f"{model}:Sum: IndexError: index out of range in self ({model}, line 11), in samples 0 to " in log, log
    assert "; started again" not in log
    summary = operator.summary("digits")
    assert summary["state"] == "failed"
    assert 1 <= summary["members_lost"] <= 2
