"""Stochastic gradient descent at a fixed rate: w <- w - rate g."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused import fused


@dataclass(frozen=True)
class SGD:
    """w <- w - rate g. No state."""

    name: ClassVar[str] = "sgd"
    state: ClassVar[tuple[str, ...]] = ()

    def initial(self, state_name: str) -> float:
        """There is no state; 0."""
        return 0.0

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w in place, compiled (see `Rule.apply`)."""
        _loop(w, g, rate)

    def apply_reference(
        self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: float | np.floating[Any], step: int
    ) -> None:
        """Update w in place, as a formula (see `Rule.apply_reference`)."""
        with np.errstate(all="ignore"):
            w -= w.dtype.type(rate) * g


@fused(states=0, scalars=1)
def _loop(w, g, rate):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        w[i] -= rate * g[i]
