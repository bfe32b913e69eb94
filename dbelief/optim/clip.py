"""Clipping of a gradient by its norm, the same for the replica that computes it and for a replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


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
