from collections.abc import Mapping

import numpy as np

from dbelief.nn import Batch, Evaluates
from worker.pipeline.delayed_model import DelayedModel

BATCH = Batch(np.ones((3, 2), np.float32), np.zeros(3))


class Bare:
    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"w": np.zeros(2, np.float32)}

    def loss_and_gradient(self, views: Mapping[str, np.ndarray], batch: Batch, out: Mapping[str, np.ndarray]) -> float:
        out["w"][:] = views["w"] + len(batch)
        return 0.5


class Telling(Bare):
    def evaluate(self, views: Mapping[str, np.ndarray], batch: Batch) -> tuple[float, int | None]:
        return 2.0, 1


class Sparse(Bare):
    reads_sparse = True


def test_only_a_gradient_takes_longer() -> None:
    waits: list[float] = []
    model, out = DelayedModel(Telling(), 0.1, waits.append), {"w": np.empty(2, np.float32)}
    for _ in range(2):
        assert model.loss_and_gradient({"w": np.ones(2, np.float32)}, BATCH, out) == 0.5
    assert out["w"].tolist() == [4.0, 4.0]
    assert waits == [0.1, 0.1]
    assert isinstance(model, Evaluates)
    assert model.evaluate({}, BATCH) == (2.0, 1)
    assert model.parameters(np.random.default_rng(0))["w"].shape == (2,)
    assert waits == [0.1, 0.1]


def test_it_can_do_no_more_than_the_model() -> None:
    assert not isinstance(DelayedModel(Bare(), 0.1), Evaluates)
    assert not DelayedModel(Bare(), 0.1).reads_sparse
    assert DelayedModel(Sparse(), 0.1).reads_sparse
