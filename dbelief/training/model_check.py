"""Test of a job's model on its first samples: the gradient is finite, and the loss is a mean over the batch.

A user's model may return a sum instead of a mean, or broadcast outputs (m, 1) and targets (m,) to (m, m). Neither
raises an error, and both train badly. Both are visible in how a batch's loss depends on its composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend, aligned
from dbelief.core.layout import Kind, Layout
from dbelief.data import Samples
from dbelief.errors import ModelError, NonFinite
from dbelief.nn import Batch, Evaluates, Model
from dbelief.optim.gradients import check_finite
from dbelief.process.terminal.console import format_error

_ALONE = 8
"""Samples whose losses are compared with the loss of all of them together."""
_NEAR = 0.02
"""Tolerance of a ratio around 2: values that training draws at random (dropout) differ from batch to batch."""
_ROUNDING = 1e-4
"""Relative difference up to which two evaluations count as equal: initial outputs are small, and so is the effect of
broadcasting."""


class ModelCheck:
    """Checks of a model on the first samples of its training data.

    Parameters
    ----------
    flat
        (N,) float32 parameters.
    size
        Samples in a mini-batch.
    """

    def __init__(
        self, model: Model, layout: Layout, flat: np.ndarray, train: Samples, size: int, backend: Backend
    ) -> None:
        self._model = model
        self._size, self._backend = min(size, len(train)), backend
        self._train = train.head(self._size).read_by(model, backend)
        self._layout = layout
        self._views = layout.views(backend.to_device(flat))

    def check_gradient(self) -> None:
        """Compute the gradient of the first mini-batch.

        Raises
        ------
        ModelError
            Where the model's code fails; quotes its error.
        NonFinite
            Where it holds NaN or infinity; names the tensor.
        """
        loss, gradient = self._gradient(np.arange(self._size))
        if not math.isfinite(loss):
            raise NonFinite(f"the loss of the first {self._size} training samples is {loss}")
        check_finite(gradient, self._layout)

    def check_mean(self) -> str:
        """Compare losses of batches with different compositions; return a one-line warning, or "".

        Cost: four mini-batches and eight samples. A warning is not an error: a loss may depend on the complete batch.
        """
        once, twice = np.arange(self._size), np.tile(np.arange(self._size), 2)
        (loss, gradient), (loss_of_two, gradient_of_two) = self._gradient(once), self._gradient(twice)
        ratios = {
            "loss": _ratio(loss_of_two, loss),
            "gradient": _ratio(float(gradient_of_two @ gradient), float(gradient @ gradient)),
            "loss of evaluate": _ratio(self._evaluated(twice), self._evaluated(once)),
        }
        for what, ratio in ratios.items():
            if abs(ratio - 2.0) <= 2.0 * _NEAR:
                return (
                    f"careful: the {what} of {2 * self._size} samples, each of them there twice, is twice that of "
                    f"{self._size}: it is a sum over the batch, and should be the mean (reduction='mean')"
                )
        few = once[:_ALONE]
        together = self._evaluated(few)
        alone = float(np.mean([self._evaluated(np.array([sample])) for sample in few]))
        if len(few) == 1 or _same(together, alone):
            return ""
        return (
            f"careful: the mean loss of {len(few)} samples is {together:.4g} computed together and {alone:.4g} one by "
            "one: do outputs and targets broadcast, as (32, 1) and (32,) to (32, 32)?"
        )

    def _gradient(self, samples: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss of a batch and the gradient of the trained parameters, which come first, on the host."""
        gradient = self._backend.to_device(aligned(self._layout.size, np.float32))
        out = self._layout.views(gradient)
        loss = self._run(
            "loss_and_gradient", samples, lambda batch: self._model.loss_and_gradient(self._views, batch, out)
        )
        trained = sum(box.size for box in self._layout.boxes if box.kind is Kind.TRAINED)
        return loss, self._backend.to_host(gradient)[:trained]

    def _evaluated(self, samples: np.ndarray) -> float:
        """The mean loss of a batch, computed as in an evaluation: without randomness used only in training."""
        model = self._model
        if not isinstance(model, Evaluates):
            return self._gradient(samples)[0]
        return self._run("evaluate", samples, lambda batch: model.evaluate(self._views, batch)[0]) / len(samples)

    def _run(self, what: str, samples: np.ndarray, compute: Callable[[Batch], float]) -> float:
        batch = self._train.gather(samples, self._train.buffer(len(samples))).on(self._backend)
        try:
            return float(compute(batch))
        except Exception as error:  # any exception of a user's model code
            about = f"inputs {_kind(batch.inputs)}, targets {_kind(batch.targets)}"
            where = f"{what} on the first {len(samples)} training samples ({about})"
            raise ModelError(f"{where}: {format_error(error)}") from error


def _kind(array: Any) -> str:
    return f"{array.dtype} of shape {tuple(array.shape)}"


def _ratio(one: float, other: float) -> float:
    """One number over the other; NaN where there is nothing to compare."""
    return one / other if other and math.isfinite(one) and math.isfinite(other) else math.nan


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=1e-6) or not math.isfinite(one + other)
