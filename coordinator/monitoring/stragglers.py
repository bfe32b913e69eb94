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
        self._reports: dict[int, deque[tuple[float, float, int]]] = {}  # by replica: when, seconds busy, samples

    def note(self, replica: int, seconds: Mapping[str, float], samples: int, now_s: float) -> None:
        """Record the totals of a replica's number over all its incarnations: seconds by phase, and samples."""
        points = self._reports.setdefault(replica, deque())
        if points and now_s - points[-1][0] < _NEW_S:
            return
        busy_s = sum(seconds.get(phase, 0.0) for phase in self._busy)
        if points and (busy_s < points[-1][1] or samples < points[-1][2]):  # rolled back to a set
            points.clear()
        points.append((now_s, busy_s, samples))
        while len(points) > 2 and points[1][0] < now_s - WINDOW_S:
            points.popleft()

    def seconds_per_sample(self, replica: int) -> float | None:
        """Seconds of work per sample; None where it has trained none in the window."""
        points = self._reports.get(replica)
        if not points or points[-1][2] == points[0][2]:
            return None
        return (points[-1][1] - points[0][1]) / (points[-1][2] - points[0][2])

    def detect(self, living: Collection[int]) -> list[int]:
        """Replicas far slower than the median of these, by rising number; of two, the median is the faster one."""
        paces = {one: pace for one in sorted(living) if (pace := self.seconds_per_sample(one)) is not None}
        if not paces:
            return []
        limit_s = FACTOR * median_low(paces.values())
        return [one for one, pace in paces.items() if pace > limit_s]
