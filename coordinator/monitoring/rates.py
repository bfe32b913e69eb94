"""How fast each member goes: from totals that it tells now and then. Nothing depends on it but what people see."""

from __future__ import annotations

import math
from collections import deque

from dbelief.process.clock import Clock

WINDOW_S = 30.0
"""Long enough for replicas that take seconds for a mini-batch."""
_EVERY_S = 0.5


class RateWindow:
    """Totals by member and name, and what they rise by in a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._points: dict[tuple[str, int, str], deque[tuple[float, float]]] = {}

    def note(self, kind: str, number: int, name: str, total: float) -> None:
        """Take a total in, as of now; one that has fallen is another life's, and is begun with."""
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
        """What a total rises by in a second; 0 before there is anything to divide, and where none came for long."""
        points = self._points.get((kind, number, name))
        if points is None or len(points) < 2 or points[-1][0] < self._clock.now() - WINDOW_S:
            return 0.0
        (t0, n0), (t1, n1) = points[0], points[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
