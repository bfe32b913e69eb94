"""Throughput over one second, and the time from a death until it is back.

The samples of a step count evenly over the time since the step before of the same process (`spread`), so that windows
of few steps do not differ by where in them the steps end. The trailing window at t is the samples of (t - `WINDOW_S`,
t], over `WINDOW_S`. Low is a window below `SHARE` of the median of all windows of the undisturbed run. A death at k is
*felt* if a window that ends within `FELT_S` after k, and before the next death, is low. Then the speed is back at the
end t of the first window after that which is not low, and the recovery time is t - k. A death that is not felt has the
recovery time 0. Where the next death comes first, the time runs on through it. Windows end at multiples of `STEP_S`.

The same computed for the deaths' moments on the undisturbed run is what noise alone gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

WINDOW_S, STEP_S, FELT_S, SHARE = 1.0, 0.1, 5.0, 0.85
PIECE_S = 0.02


def speeds(looks: Sequence[tuple[float, float]], ended_s: float) -> list[int]:
    """Samples/s of the windows that end at `WINDOW_S`, `WINDOW_S + STEP_S`, ...

    Parameters
    ----------
    looks
        (time in s since training began, samples since the last look), all counters together, in any order.
    ended_s
        The time at which it ended.
    """
    ordered = np.array(sorted(looks), np.float64).reshape(-1, 2)
    total = np.concatenate([[0.0], np.cumsum(ordered[:, 1])])
    ends_s = WINDOW_S + STEP_S * np.arange(max(0, int((ended_s - WINDOW_S) / STEP_S)))

    def until(at_s: Any) -> Any:
        return total[np.searchsorted(ordered[:, 0], at_s, side="right")]

    return [round(speed) for speed in (until(ends_s) - until(ends_s - WINDOW_S)) / WINDOW_S]


def recoveries(course: Sequence[int], deaths_s: Sequence[float], usual: float) -> list[float | None]:
    """Recovery time of each death in s, in order; None where the run ended first.

    Parameters
    ----------
    course
        Result of `speeds`.
    deaths_s
        Moments of the deaths since training began, ascending.
    usual
        Median samples/s of the undisturbed run.
    """
    ends_s = WINDOW_S + STEP_S * np.arange(len(course))
    low = np.array(course) < SHARE * usual
    found: list[float | None] = []
    for death_s, next_s in pairwise([*deaths_s, float("inf")]):
        felt = np.flatnonzero(low & (ends_s > death_s) & (ends_s <= min(death_s + FELT_S, max(next_s, death_s + 1))))
        back = np.flatnonzero(~low & (ends_s > ends_s[felt[0]])) if len(felt) else felt
        found.append((float(ends_s[back[0]] - death_s) if len(back) else None) if len(felt) else 0.0)
    return found


def increases(looks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Looks of one counter as increases; a lower value is that of a counter that restarted at 0."""
    found, last = [], 0.0
    for at_s, value in looks:
        found.append((at_s, value - last if value >= last else value))
        last = value
    return found


def spread(more: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Increases of one counter in pieces of at most `PIECE_S`, each evenly over the time since the one before."""
    found: list[tuple[float, float]] = []
    last_s: float | None = None
    for at_s, value in more:
        if value <= 0:
            continue
        pieces = 1 if last_s is None else max(1, math.ceil((at_s - last_s) / PIECE_S))
        begun_s = at_s if last_s is None else last_s
        found += [(begun_s + (at_s - begun_s) * (n + 1) / pieces, value / pieces) for n in range(pieces)]
        last_s = at_s
    return found
