"""Stochastic gradient descent: w <- w - rate (g + weight_decay w).

The decay is the gradient of weight_decay / 2 times the squared norm of all parameters, biases too, as torch.optim.SGD
and Caffe have it; it acts once per push (see `adam`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused_kernel import fused
from .options import at_least_zero
from .rule import Rate


@dataclass(frozen=True)
class SGD:
    """w <- w - rate (g + weight_decay w). No state.

    Parameters
    ----------
    weight_decay : float
        Multiple of w that is added to a gradient.
    """

    weight_decay: float = 0.0
    name: ClassVar[str] = "sgd"
    state: ClassVar[Mapping[str, float]] = {}

    def __post_init__(self) -> None:
        at_least_zero(self.name, weight_decay=self.weight_decay)

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w in place, compiled (see `Rule.apply`)."""
        _loop(w, g, rate, self.weight_decay)

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Update w in place, as a formula (see `Rule.apply_reference`)."""
        number = w.dtype.type
        with np.errstate(all="ignore"):
            w -= number(rate) * (g + number(self.weight_decay) * w)


@fused(states=0, scalars=2)
def _loop(w, g, rate, weight_decay):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        w[i] -= rate * (g[i] + weight_decay * w[i])
