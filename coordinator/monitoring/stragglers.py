"""Detection of replicas that are far slower than the others, by their own work per sample. No clock.

Samples per second would not show it: where replicas wait for each other, all are as slow as the slowest. So the measure
is a replica's busy time in seconds, reported by phase, divided by the samples trained in that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median_low

FACTOR = 2.0
"""A straggler needs more than this multiple of the median's seconds per sample."""
WINDOW_S = 30.0
_NEW_S = 0.5
"""Minimum seconds between two records of a replica; more frequent ones are dropped."""


class Stragglers:
    """Speeds of a job's replicas over the last `WINDOW_S` seconds.

    Parameters
    ----------
    busy
        Phases that are a replica's own work: with a staleness bound, or in a group, a push may wait for others.
    """

    def __init__(self, busy: Collection[str]) -> None:
        self._busy = busy
        self._told: dict[int, deque[tuple[float, float, int]]] = {}  # by replica: when, seconds busy, samples

    def note(self, replica: int, seconds: Mapping[str, float], samples: int, now_s: float) -> None:
        """Record the totals of a replica's number over all its incarnations: seconds by phase, and samples."""
        told = self._told.setdefault(replica, deque())
        if told and now_s - told[-1][0] < _NEW_S:
            return
        busy_s = sum(seconds.get(phase, 0.0) for phase in self._busy)
        if told and (busy_s < told[-1][1] or samples < told[-1][2]):  # rolled back to a set
            told.clear()
        told.append((now_s, busy_s, samples))
        while len(told) > 2 and told[1][0] < now_s - WINDOW_S:
            told.popleft()

    def seconds_per_sample(self, replica: int) -> float | None:
        """Seconds of work per sample; None where it has trained none in the window."""
        told = self._told.get(replica)
        if not told or told[-1][2] == told[0][2]:
            return None
        return (told[-1][1] - told[0][1]) / (told[-1][2] - told[0][2])

    def detect(self, living: Collection[int]) -> list[int]:
        """Replicas far slower than the median of these, by rising number; of two, the median is the faster one."""
        paces = {one: pace for one in sorted(living) if (pace := self.seconds_per_sample(one)) is not None}
        if not paces:
            return []
        limit_s = FACTOR * median_low(paces.values())
        return [one for one, pace in paces.items() if pace > limit_s]
