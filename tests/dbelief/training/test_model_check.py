"""A model tried on its first samples: sums taken for means, and outputs that broadcast against targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.data import Split
from dbelief.errors import NonFinite
from dbelief.nn import Batch
from dbelief.training.model_check import ModelCheck

Loss = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def of_mean(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    error = outputs - targets
    return float((error**2).mean()), 2 * error / len(error)


def of_sum(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    loss, slope = of_mean(outputs, targets)
    return loss * len(targets), slope * len(targets)


def sum_of_gradients(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    return of_mean(outputs, targets)[0], of_sum(outputs, targets)[1]


def of_pairs(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    error = outputs[:, 0] - targets  # (m, m)
    return float((error**2).mean()), 2 * error.mean(axis=0)[:, None] / len(error)


class Line:
    """y = x w, where dropout takes numbers away if it is asked to."""

    def __init__(self, loss: Loss, drops: bool = False) -> None:
        self.loss, self.drops = loss, drops

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"w": rng.standard_normal((3, 1), dtype=np.float32)}

    def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
        inputs = np.array(batch.inputs)
        if self.drops:
            inputs *= np.random.default_rng(len(batch)).random(inputs.shape) < 0.5
        loss, slope = self.loss(inputs @ views["w"], batch.targets)
        out["w"][:] = inputs.T @ slope
        return loss


class Evaluated(Line):
    def evaluate(self, views: Mapping[str, Any], batch: Batch) -> tuple[float, int | None]:
        return self.loss(batch.inputs @ views["w"], batch.targets)[0] * len(batch), None


def trial(model: Line, samples: int = 40, size: int = 32) -> ModelCheck:
    rng = np.random.default_rng(3)
    inputs, targets = (rng.standard_normal((samples, width), dtype=np.float32) for width in (3, 1))
    split = Split(inputs, targets)
    drawn = model.parameters(rng)
    layout = Layout.of(drawn)
    flat = layout.flatten(dict(drawn), np.empty(layout.size, np.float32))
    return ModelCheck(model, layout, flat, split, size, select_backend("cpu"))


@pytest.mark.parametrize("model", [Line(of_mean), Evaluated(of_mean), Evaluated(of_mean, drops=True)])
@pytest.mark.parametrize(("samples", "size"), [(40, 32), (5, 32), (1, 4)])
def test_a_mean_is_fine(model: Line, samples: int, size: int) -> None:
    tried = trial(model, samples, size)
    tried.check_gradient()
    assert tried.check_mean() == ""


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Line(of_sum), "loss"),
        (Evaluated(of_sum), "loss"),
        (Evaluated(of_sum, drops=True), "loss of evaluate"),
        (Line(sum_of_gradients), "gradient"),
    ],
)
def test_sum_over_the_batch_is_reported(model: Line, what: str) -> None:
    said = trial(model).check_mean()
    assert said.startswith(f"careful: the {what} of 64 samples, each of them there twice, is twice that of 32: ")
    assert said.endswith("it is a sum over the batch, and should be the mean (reduction='mean')")


@pytest.mark.parametrize("model", [Line(of_pairs), Evaluated(of_pairs)])
def test_broadcast_of_outputs_and_targets_is_reported(model: Line) -> None:
    tried = trial(model)
    tried.check_gradient()
    assert tried.check_mean().startswith("careful: the mean loss of 8 samples is ")
    assert "do outputs and targets broadcast, as (32, 1) and (32,) to (32, 32)?" in tried.check_mean()


def test_small_outputs_hide_no_broadcast() -> None:
    def far(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
        return of_pairs(outputs / 100, targets)

    assert trial(Evaluated(far)).check_mean().startswith("careful: the mean loss of 8 samples is ")


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NonFinite, match="the loss of the first 32 training samples is nan"):
        trial(Line(lambda outputs, targets: (float("nan"), outputs))).check_gradient()
