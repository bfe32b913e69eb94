"""Compiled loops over the numbers of vectors: float32 or float64 in any mixture, computed in float64.

A sum may be split in as many as fit the processor's registers (`reassoc`), without which it would wait for each
addition; nothing else is reordered, so that all but sums have NumPy's bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dbelief.jit import jit


@functools.cache
def compiled(name: str) -> Callable[..., Any]:
    """A loop by its name, compiled for each mixture of types when it first meets them."""
    loops: dict[str, tuple[Callable[..., Any], bool]] = {
        "one": (_one, False),
        "two": (_two, False),
        "four": (_four, False),
        "product": (_product, False),
        "dot": (_dot, True),
        "norm1": (_norm1, True),
        "maxabs": (_maxabs, False),
    }
    loop, sums = loops[name]
    return jit(loop, error_model="numpy", fastmath={"reassoc"} if sums else False)


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


def _product(target: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    for i in range(target.size):
        target[i] = np.float64(x[i]) * np.float64(y[i])


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


def _norm1(x: np.ndarray) -> float:
    total = 0.0
    for i in range(x.size):
        total += abs(np.float64(x[i]))
    return total


def _maxabs(x: np.ndarray) -> float:
    highest = 0.0
    for i in range(x.size):
        size = abs(np.float64(x[i]))
        if size > highest or math.isnan(size):
            highest = size
    return highest
