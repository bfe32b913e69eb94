"""Random numbers and times of the simulated events; importing this module imports numba.

Equal seeds give equal results on every processor: a draw is integer arithmetic, then a lookup in a table of quantiles
whose entries are rounded to a billionth, so that another processor's logarithm makes no other entry. No operation is
fused or reordered by the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from dbelief.arrays.jit import inlined

ENTRIES = 4096
"""Entries of a table of quantiles."""
_DIGITS = 9
_HALF = 0.5
u64 = np.uint64


def exponential() -> np.ndarray:
    """Quantiles of the exponential distribution of mean 1, (ENTRIES,) float64."""
    return _table(lambda share: -math.log1p(-share))


def lognormal(variation: float) -> np.ndarray:
    """Quantiles of the log-normal distribution of mean 1, (ENTRIES,) float64.

    Parameters
    ----------
    variation
        Coefficient of variation: the standard deviation over the mean.
    """
    sigma = math.sqrt(math.log1p(variation * variation))
    normal = NormalDist()
    return _table(lambda share: math.exp(sigma * normal.inv_cdf(share) - sigma * sigma / 2))


def _table(quantile: Callable[[float], float]) -> np.ndarray:
    values = [quantile((place + _HALF) / ENTRIES) for place in range(ENTRIES)]
    mean = math.fsum(values) / ENTRIES  # the last entry stands for a tail
    return np.array([round(value / mean, _DIGITS) for value in values])


@inlined
def uniform(state: np.ndarray) -> float:
    """The next number in [0, 1); `state`: (1,) uint64 (splitmix64, Steele et al. 2014)."""
    state[0] += u64(0x9E3779B97F4A7C15)
    mixed = state[0]
    mixed = (mixed ^ (mixed >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> u64(27))) * u64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> u64(31))
    return float(mixed >> u64(11)) * (1.0 / 9007199254740992.0)


@inlined
def drawn(state: np.ndarray, table: np.ndarray) -> Any:
    """A number of a distribution: one of its table's entries."""
    return table[int(uniform(state) * len(table))]
