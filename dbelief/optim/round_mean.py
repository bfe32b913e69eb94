"""The gradient of a round: the weighted mean of what its members have pushed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.core.absent import Ranges, common

from .apply import FEW


def round_mean(length: int, pushed: Sequence[tuple[np.ndarray, float, Ranges]]) -> tuple[np.ndarray, Ranges]:
    """The mean of a segment's gradients, and what of it is absent from each of them.

    Parameters
    ----------
    length
        Of the segment.
    pushed
        Of each push the (length,) float32 gradient, which is 0 where it is absent, its weight, and the ranges of the
        segment that took no part. They are summed in this order: it decides the bits. Without weight, a push is left
        out; where all are, everything is absent.

    Raises
    ------
    ValueError
        A gradient has another length or dtype: the loop reads it unchecked.
    """
    for gradient, _, _ in pushed:
        if gradient.shape != (length,) or gradient.dtype != np.float32:
            raise ValueError(
                f"a gradient has {gradient.shape} numbers of {gradient.dtype}, must have {length} of float32"
            )
    total = sum(weight for _, weight, _ in pushed)
    counted = [one for one in pushed if one[1]]
    absent: Ranges = (0, length)
    if counted:
        absent = common(ranges for _, _, ranges in counted) if all(ranges for _, _, ranges in counted) else ()
    mean = np.zeros(length, np.float32)
    for gradient, weight, _ in counted:
        share = np.float32(weight / total)
        if length > FEW:
            _add(mean, gradient, share)
        else:  # the import of numba costs more than a small model's rounds
            mean += gradient * share
    return mean, absent


def warm_up(longest: int) -> None:
    """Compile the loop, or load it from the cache; not where the longest segment does not need it."""
    if longest > FEW:
        none = np.zeros(0, np.float32)
        _add(none, none, np.float32(0))


@kernel("write float32", "read float32", "float32", "void")
def _add(total: np.ndarray, gradient: np.ndarray, share: np.float32) -> None:
    """Add a share of the numbers; the bits of two operations of NumPy, without an array between them."""
    for i in range(total.size):
        total[i] += gradient[i] * share
