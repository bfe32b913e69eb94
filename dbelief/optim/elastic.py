"""The elastic rule of the centre: w <- w + a (x - w), where x are a worker's own weights (Zhang et al. 2015, eq. 2).

The other half is the worker's: x <- x - a (x - w) with the same two old values, after which x + w is what it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused_kernel import fused
from .rule import Rate


@dataclass(frozen=True)
class Elastic:
    """w <- w + a (x - w). No state; x stands where other rules have a gradient, a where they have a rate."""

    name: ClassVar[str] = "elastic"
    state: ClassVar[Mapping[str, float]] = {}

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Move w towards g in place, compiled (see `Rule.apply`)."""
        _loop(w, g, rate)

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Move w towards g in place, as a formula (see `Rule.apply_reference`)."""
        with np.errstate(all="ignore"):
            w += w.dtype.type(rate) * (g - w)

    def together(self, xp: Any, w: Any, weights: Sequence[Any], rate: Rate) -> None:
        """Move w towards several workers' weights at once, summed in their order (see `move`)."""
        with np.errstate(all="ignore"):
            total = weights[0].copy()
            for x in weights[1:]:
                total += x
            self.move(w, total, len(weights), rate)

    @staticmethod
    def move(w: Any, total: Any, workers: int, rate: Rate) -> None:
        """W <- w + a (total - P w), where `total`, which is used up, is the sum of the weights of P workers."""
        number = w.dtype.type
        total -= number(workers) * w
        total *= number(rate)
        w += total


@fused(states=0, scalars=1)
def _loop(w, g, rate):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        w[i] += rate * (g[i] - w[i])
