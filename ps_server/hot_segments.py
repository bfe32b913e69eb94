"""Metrics of the most pushed segments of a shard: a fixed number of values, however many segments there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime

WINDOW_S = 5.0
"""Minimum time span of a rate, in seconds; reads in shorter intervals return the previous result."""


class HotSegments:
    """The segments with the most pushes since the previous evaluation.

    Parameters
    ----------
    counts
        Pushes of each segment so far, by its number; called when the metrics are read.
    most
        Number of segments to report.

    Cost: one pass over the counts every `WINDOW_S`, and one number stored per segment; nothing in the push path.
    """

    def __init__(self, counts: Callable[[], Mapping[int, int]], most: int, clock: Clock) -> None:
        self._counts = counts
        self._most = most
        self._clock = clock
        self._before: Mapping[int, int] | None = None
        self._looked_s = 0.0
        self._top: list[tuple[int, float]] = []
        self._share = math.nan
        self._lock = runtime.lock()

    def top(self) -> list[tuple[int, float]]:
        """Number and pushes per second of the busiest segments, busiest first; equals by rising number."""
        self._look()
        return self._top

    def share(self) -> float:
        """The busiest segment's share of all pushes to segments, 0 to 1; NaN where there were none."""
        self._look()
        return self._share

    def _look(self) -> None:
        with self._lock:
            now_s = self._clock.now()
            if self._before is not None and now_s - self._looked_s < WINDOW_S:
                return
            counts = dict(self._counts())
            if self._before is not None and self._before.keys() == counts.keys() and counts:
                self._rank(counts, self._before, now_s - self._looked_s)
            else:  # the first evaluation, or a new incarnation with other segments
                self._top, self._share = [], math.nan
            self._before, self._looked_s = counts, now_s

    def _rank(self, counts: Mapping[int, int], before: Mapping[int, int], seconds: float) -> None:
        numbers = np.array(sorted(counts))
        pushed = np.array([max(0, counts[number] - before[number]) for number in numbers])
        order = np.argsort(-pushed, kind="stable")[: self._most]
        self._top = [(int(numbers[place]), float(pushed[place]) / seconds) for place in order]
        total = int(pushed.sum())
        self._share = float(pushed[order[0]]) / total if total else math.nan
