"""A model for batch methods whose sums are exact in any order, so that one pass has one result, bit for bit.

The loss of sample i is the sum over all numbers w of sqrt(1 + w^2) + c(i) w, with c(i) = i / 1,024. Gradients and
losses are rounded to multiples of a power of two that is so coarse that no sum of them is rounded again. All segments
are alike, so that a product of two vectors does not depend on which of them share a shard.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

MODEL = Path(__file__)
STEP = 2.0**-16
"""Gradients are multiples of it: 17 bits, and 3 more for a portion's samples, of the 24 of float32."""
LOSS_STEP = 2.0**-20
"""Losses, and parameters as they count in them, are multiples of it."""
SLOPE = 2.0**-10
"""c(1)."""
FAR = 2.0
"""Most that a parameter is from 0 at the start."""


class Basin:
    """See the module."""

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The same numbers in each segment, from -`FAR` to `FAR`."""
        from tests.simulation.models.marks import LENGTH, ROWS  # this file is run again as a user's model

        return {"marks": np.tile(np.linspace(-FAR, FAR, LENGTH, dtype=np.float32), (ROWS, 1))}

    def loss_and_gradient(self, views: dict[str, np.ndarray], batch: Any, out: dict[str, np.ndarray]) -> float:
        """Mean loss, and its gradient; exact where the number of samples is a power of two."""
        from tests.simulation.models.marks import marker

        numbers = batch.inputs[:, 0].astype(np.float64)
        marker.compute(numbers.astype(int))
        loss, gradient = sums(views["marks"], numbers)
        out["marks"][:] = gradient / len(numbers)
        return loss / len(numbers)

    def evaluate(self, views: dict[str, np.ndarray], batch: Any) -> tuple[float, None]:
        """Sum of the losses."""
        from tests.simulation.models.marks import marker

        marker.evaluate()
        return sums(views["marks"], batch.inputs[:, 0].astype(np.float64))[0], None


basin = Basin()


def sums(w: np.ndarray, numbers: np.ndarray) -> tuple[float, np.ndarray]:
    """Sum of the losses of these samples, and of their gradients: float64, as `w`."""
    wide = w.astype(np.float64)
    root = np.sqrt(1 + wide * wide)
    slope = SLOPE * float(numbers.sum())
    gradient = len(numbers) * _rounded(wide / root, STEP) + slope
    loss = len(numbers) * _rounded(root, LOSS_STEP).sum() + slope * _rounded(wide, LOSS_STEP).sum()
    return float(loss), gradient


def _rounded(values: np.ndarray, step: float) -> np.ndarray:
    return np.rint(values / step) * step
