"""A batch method that cannot continue ends by itself, with a one-line reason, and waits for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from .conftest import Operator

pytestmark = pytest.mark.processes

MODEL = """
import os
import signal

import numpy as np


class Model:
    \"\"\"A mean of 20 numbers, which cannot bear a sample that begins with 7.\"\"\"

    def parameters(self, rng):
        return {{"w": np.zeros(20, np.float32)}}

    def loss_and_gradient(self, views, batch, out):
        if (batch.inputs[:, 0] == 7).any():
            {trouble}
        out["w"][:] = views["w"] - batch.inputs.mean(axis=0)
        return float(((views["w"] - batch.inputs) ** 2).sum(axis=1).mean()) / 2
"""


def write_data(folder: Path, samples: int = 100) -> None:
    inputs = np.zeros((samples, 20), np.float32)
    inputs[:, 0] = 1
    inputs[33, 0] = 7
    np.savez(folder / "data.npz", inputs=inputs, targets=np.full((samples, 1), 0.5, np.float32))


def prepare(operator: Operator, trouble: str = "pass", join_s: float = 30.0) -> Path:
    (operator.folder / "model.py").write_text(MODEL.format(trouble=trouble))
    write_data(operator.folder)
    kept = {"validation": 0, "test": 0}
    job = {
        "name": "troubled",
        "model": {"python": "model.py:Model"},
        "data": {"source": "npz", "file": "data.npz", **kept},
        "strategy": {"name": "sandblaster", "portion": 10, "bundle": 1, "iterations": 3},
        "limits": {"epochs": 100},
        "evaluate": {"every": None},
        "deadlines": {"beat_s": 2, "join_s": join_s},
        "shards": 1,
        "replicas": 2,
    }
    return operator.write_job(json.dumps(job))


def ended(operator: Operator) -> str:
    return str(operator.events("troubled", "state")[-1]["reason"])


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        pytest.param('raise ValueError("a 7")', r"failed 3 times: ValueError: a 7", marks=pytest.mark.long),
        ("return float('nan')", r"the loss is nan after 0 iterations"),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGKILL)",
            r"failed 3 times: the replicas that computed it failed",
            marks=pytest.mark.long,
        ),
    ],
)
def test_samples_that_no_replica_can_compute(operator: Operator, trouble: str, reason: str) -> None:
    train = operator.start("train", "train", str(prepare(operator, trouble=trouble)), "--quiet")
    assert train.ends() == 1
    assert reason in train.log.read_text().splitlines()[-1]
    assert reason in ended(operator)


@pytest.mark.long
def test_no_replica_ever_joins(operator: Operator) -> None:
    coordinator, address = operator.coordinator(prepare(operator, join_s=10.0))
    shard, *_ = operator.members(address, 1, 0)
    assert coordinator.ends() == 1
    assert ended(operator) == "waited 10 s for a replica to join"
    shard.ends()


@pytest.mark.long
def test_all_replicas_are_gone(operator: Operator) -> None:
    job = prepare(operator, join_s=10.0)
    coordinator, address = operator.coordinator(
        job, "--set", "strategy.iterations=100000", "--set", "limits.epochs=1000000"
    )
    _, *workers = operator.members(address, 1, 2)
    operator.until("troubled", "iteration")
    for worker in workers:
        worker.kill()
    assert coordinator.ends() == 1
    assert ended(operator).startswith("no replica for 10 s")


@pytest.mark.long
def test_a_replica_whose_data_has_shrunk(operator: Operator) -> None:
    coordinator, address = operator.coordinator(prepare(operator, join_s=10.0))
    elsewhere = operator.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.py").write_text((operator.folder / "model.py").read_text())
    write_data(elsewhere, samples=90)
    shard, worker = (
        operator.start("ps", "ps", "--coordinator", address),
        operator.start("worker", "worker", "--coordinator", address, "--folder", str(elsewhere)),
    )
    assert worker.ends() == 1
    assert "data holds 90 training samples, the job's 100" in worker.log.read_text().splitlines()[-1]
    assert coordinator.ends() == 1
    assert ended(operator) == "waited 10 s for a replica to join"
    shard.ends()
