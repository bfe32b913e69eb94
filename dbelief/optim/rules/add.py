"""The rule of differences: w <- w + d, for replicas that step with an optimiser of their own, and for buffers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .rule import Rate


@dataclass(frozen=True)
class Add:
    """w <- w + d. No state; d stands where other rules have a gradient, and there is no rate."""

    name: ClassVar[str] = "add"
    state: ClassVar[Mapping[str, float]] = {}

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Add in place (see `Rule.apply`)."""
        with np.errstate(all="ignore"):
            np.add(w, g, out=w)

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Add in place, as a formula (see `Rule.apply_reference`)."""
        with np.errstate(all="ignore"):
            w += g


ADD = Add()
