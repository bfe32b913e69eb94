"""Models on a device that leave out parameters: the steps of the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.core.layout import Layout
from dbelief.nn import Batch
from dbelief.training.elastic_weights import ElasticWeights
from tests.device.standin.cupy import standing_in
from tests.equivalence.groups import sgd
from worker.comm import Communicator
from worker.comm.threads import Group, ThreadEngine
from worker.strategies.group_methods import AllreduceSgd

START = {"a": np.arange(1, 6, dtype=np.float32), "b": np.arange(3, 10, dtype=np.float32)}
LAYOUT = Layout.of(START)
BATCH = Batch(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))


class Half:
    """The gradient is twice the parameters; "b" takes part in every other pass."""

    def __init__(self) -> None:
        self.absent: Collection[str] = ["b"]

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return START

    def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
        self.absent = [] if self.absent else ["b"]
        for name, own in out.items():
            own[:] = views[name]
            own *= np.float32(0 if name in self.absent else 2)
        return 1.0


def elastic(backend: Backend) -> np.ndarray:
    own = ElasticWeights(Half(), LAYOUT.part(0), backend, mu=0.5)
    own.begin(LAYOUT.flatten(START, np.empty(LAYOUT.size, np.float32)))
    for step in range(6):
        own.compute(BATCH)
        own.step(0.125, 0.25, np.ones(LAYOUT.size, np.float32) if step % 3 == 2 else None)
    weights: np.ndarray = backend.to_host(own.values)
    return weights


def together(backend: Backend) -> np.ndarray:
    method = AllreduceSgd(Half(), LAYOUT.part(0), backend, sgd({"name": "adam", "rate": 0.1}))
    method.join(Communicator(ThreadEngine(Group(1), 0), 10.0))
    LAYOUT.flatten(START, method.result)
    method.begin()
    for _ in range(5):
        method.step(BATCH, 1.0, 0.1, lambda: None)
    assert method.state()[-1].tolist() == [5, 3]
    return method.result


@pytest.mark.parametrize("train", [elastic, together])
def test_a_device_makes_the_steps_of_the_host(train: Any) -> None:
    expected = train(select_backend("cpu"))
    with standing_in(devices=1, seed=1, eagerness=0.3):
        np.testing.assert_array_equal(train(select_backend("cuda")), expected)
