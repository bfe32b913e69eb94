"""The rule of shards whose parameters come from workers that have agreed on them: w <- x."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .rule import Rate


@dataclass(frozen=True)
class Replace:
    """w <- x. No state; x stands where other rules have a gradient, and there is no rate."""

    name: ClassVar[str] = "replace"
    state: ClassVar[Mapping[str, float]] = {}

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Copy (see `Rule.apply`)."""
        np.copyto(w, g)

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Copy (see `Rule.apply_reference`)."""
        w[...] = g
