"""The rule of shards whose parameters come from workers that have agreed on them: w <- x."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Replace:
    """w <- x. No state; x stands where other rules have a gradient, and there is no rate."""

    name: ClassVar[str] = "replace"
    state: ClassVar[tuple[str, ...]] = ()

    def initial(self, state_name: str) -> float:
        """There is no state; 0."""
        return 0.0

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Copy (see `Rule.apply`)."""
        np.copyto(w, g)

    def apply_reference(
        self, xp: Any, w: Any, g: Any, states: Sequence[Any], rate: float | np.floating[Any], step: int
    ) -> None:
        """Copy (see `Rule.apply_reference`)."""
        w[...] = g
