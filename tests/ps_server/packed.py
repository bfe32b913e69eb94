"""Packed numbers of a bundle."""

from __future__ import annotations

import numpy as np

from dbelief.sparse.table import pack


def packed(values: np.ndarray) -> np.ndarray:
    """What a packed push brings in the place of these numbers of a segment: those above 0."""
    positions = np.flatnonzero(values > 0)
    return pack(positions, values[positions])
