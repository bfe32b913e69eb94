"""Throughput of each member, from the totals that it reports. Used only for display."""

from __future__ import annotations

import math
from collections import deque

from dbelief.process.clock import Clock

WINDOW_S = 30.0
"""Window in seconds; long enough for replicas that take seconds for a mini-batch."""
_EVERY_S = 0.5


class RateWindow:
    """Totals by member and name, and their rates per second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._points: dict[tuple[str, int, str], deque[tuple[float, float]]] = {}

    def note(self, kind: str, number: int, name: str, total: float) -> None:
        """Record a total, as of now; one that has fallen belongs to a new incarnation and restarts the window."""
        if not math.isfinite(total):
            return
        now_s = self._clock.now()
        points = self._points.setdefault((kind, number, name), deque())
        if points and total < points[-1][1]:
            points.clear()
        if len(points) > 1 and now_s - points[-2][0] < _EVERY_S:
            points.pop()
        points.append((now_s, total))
        while len(points) > 2 and points[1][0] < now_s - WINDOW_S:
            points.popleft()

    def per_second(self, kind: str, number: int, name: str) -> float:
        """Increase of a total per second; 0 with fewer than two totals, or without a recent one."""
        points = self._points.get((kind, number, name))
        if points is None or len(points) < 2 or points[-1][0] < self._clock.now() - WINDOW_S:
            return 0.0
        (t0, n0), (t1, n1) = points[0], points[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
