"""Compiled loops over the numbers of vectors: float32 or float64 in any mixture, computed in float64.

No operation is fused or reordered: all but sums have the same bits as NumPy, and sums, which `lanes.py` adds in an
order of its own, the same bits on every processor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dbelief.arrays.jit import jit


@functools.cache
def compiled(name: str) -> Callable[..., Any]:
    """A loop by its name, compiled for each mixture of types at its first use."""
    from dbelief.arrays import lanes  # brings numba

    loops: dict[str, Callable[..., Any]] = {
        "one": _one,
        "two": _two,
        "four": _four,
        "dot": lanes.dot,
        "norm1": lanes.norm1,
        "pseudo": _pseudo,
        "opposed": _opposed,
        "orthant": _orthant,
    }
    return jit(loops[name], error_model="numpy")


def _one(target: np.ndarray, c: float, x: np.ndarray) -> None:
    for i in range(target.size):
        target[i] = c * np.float64(x[i])


def _two(target: np.ndarray, c: float, x: np.ndarray, d: float, y: np.ndarray) -> None:
    for i in range(target.size):
        target[i] = c * np.float64(x[i]) + d * np.float64(y[i])


def _four(
    total: np.ndarray,
    a: float,
    x: np.ndarray,
    b: float,
    y: np.ndarray,
    c: float,
    z: np.ndarray,
    d: float,
    u: np.ndarray,
) -> None:
    for i in range(total.size):
        total[i] = total[i] + a * np.float64(x[i]) + b * np.float64(y[i]) + c * np.float64(z[i]) + d * np.float64(u[i])


def _pseudo(target: np.ndarray, w: np.ndarray, g: np.ndarray, c: float) -> None:
    for i in range(target.size):
        x, slope = np.float64(w[i]), np.float64(g[i])
        if x > 0.0 or (x == 0.0 and slope < -c):
            target[i] = slope + c
        elif x < 0.0 or slope > c:
            target[i] = slope - c
        else:
            target[i] = 0.0 * slope  # nan where the slope is


def _opposed(target: np.ndarray, v: np.ndarray) -> None:
    for i in range(target.size):
        if np.float64(target[i]) * np.float64(v[i]) >= 0.0:
            target[i] = 0.0


def _orthant(target: np.ndarray, w: np.ndarray, v: np.ndarray) -> None:
    for i in range(target.size):
        sign = np.float64(w[i])
        if sign == 0.0:
            sign = -np.float64(v[i])
        if np.float64(target[i]) * sign <= 0.0:
            target[i] = 0.0
