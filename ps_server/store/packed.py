"""Single numbers of a segment, by their positions in it: of a bundle that is packed, and of a pull.

Packed numbers are rows of one number (`dbelief.sparse.table`), with positions as keys; what they leave out is 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dbelief.core.layout import SegmentSpan
from dbelief.errors import Rejected
from dbelief.sparse.table import rises, unpack

Into = Callable[[int], np.ndarray]
"""Returns the float32 array of so many numbers that receives what is read."""


def check_packed(span: SegmentSpan, values: np.ndarray) -> None:
    """Check the packed numbers of a bundle, before any of them is used.

    Raises
    ------
    Rejected
        They are no positions within the segment, strictly rising, and as many numbers.
    """
    if values.dtype != np.float32 or values.size % 3:
        raise Rejected(f"segment {span.index}: {values.size} numbers of {values.dtype} are no positions and numbers")
    positions, _ = unpack(values, 1)
    if positions.size and not (0 <= positions[0] <= positions[-1] < span.length and rises(positions)):
        raise Rejected(f"segment {span.index}: positions that do not rise strictly within its {span.length} numbers")


def whole(packed: np.ndarray, length: int) -> np.ndarray:
    """(length,) float32 of packed numbers."""
    positions, values = unpack(packed, 1)
    numbers = np.zeros(length, np.float32)
    numbers[positions] = values.reshape(-1)
    return numbers


def numbers_at(span: SegmentSpan, vector: np.ndarray, positions: np.ndarray, into: Into | None = None) -> np.ndarray:
    """(n,) numbers of a segment's vector at (n,) int64 positions, in any order; in the array of `into`, if any.

    Raises
    ------
    Rejected
        A position lies outside of the segment.
    """
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < span.length:
        raise Rejected(f"segment {span.index}: positions outside of its {span.length} numbers")
    if into is None:
        return np.asarray(vector[positions])
    out = into(positions.size)
    out[:] = vector[positions]
    return out
