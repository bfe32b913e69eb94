"""Sums at chosen positions of a vector, in a compiled loop."""

from __future__ import annotations

import numpy as np

from .jit import kernel


@kernel("write float64", "read int64", "read float32", "void")
def add_at(total: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Add (n,) values to the numbers at (n,) positions, each once; float64, as a sum of whole vectors."""
    for i in range(positions.size):
        total[positions[i]] += np.float64(values[i])
