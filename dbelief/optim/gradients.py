"""Clipping of a gradient by its norm, the same in the replica that computes it and in a replay, and the check that all
its numbers are finite, before they are sent to where others compute with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dbelief.arrays.backend import on_device_of
from dbelief.core.layout import Layout, RankPart
from dbelief.errors import NonFinite


def clip_by_norm(
    xp: Any, gradient: Any, longest: float | None, total: Callable[[float], float] = lambda squares: squares
) -> None:
    """Shorten a gradient in place to a Euclidean norm of `longest`, where it is longer; None: any norm.

    Parameters
    ----------
    gradient
        (N,) float32 array of the module `xp`. One that is not finite is left as it is, for the push to name.
    total
        Sum of the ranks' squares, where the gradient is one rank's part of it.
    """
    if longest is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(xp.dot(gradient, gradient))
    if math.isinf(squares):  # the squares overflow float32, perhaps the numbers do not
        wide = gradient.astype(np.float64)
        squares = float(xp.dot(wide, wide))
    squares = total(squares)
    norm = math.sqrt(squares) if squares >= 0 else math.nan
    if longest < norm < math.inf:
        xp.multiply(gradient, np.float32(longest / norm), out=gradient)


def check_finite(values: Any, layout: Layout | RankPart, what: str = "gradient", start: int = 0) -> float:
    """The Euclidean norm of (n,) float32 values of a layout, from its number `start` on; on the host or a device.

    Raises
    ------
    NonFinite
        Where there is NaN or infinity; names the tensor and counts the numbers.

    Notes
    -----
    One pass, without a temporary: the squares' sum is finite only if all numbers are (or are huge, which is looked
    into).
    """
    with np.errstate(over="ignore"), on_device_of(values):  # a push thread asks for what another one computed
        squares = float(values.dot(values))
    if math.isfinite(squares):
        return math.sqrt(squares)
    if not isinstance(values, np.ndarray):
        values = values.get()
    bad = np.flatnonzero(~np.isfinite(values))
    if not bad.size:  # the squares overflow float32, the numbers do not
        return float(np.linalg.norm(values.astype(np.float64)))
    name = layout.tensor_at(start + int(bad[0]))
    raise NonFinite(f"{what} of {name!r} holds {values[bad[0]]} ({bad.size} of {values.size} numbers are not finite)")
