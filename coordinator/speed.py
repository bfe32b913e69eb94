"""How fast training goes, now."""

from __future__ import annotations

from collections import deque

from dbelief.clock import Clock


class Speed:
    """Samples per second over the last few seconds."""

    def __init__(self, clock: Clock, window_s: float = 5.0) -> None:
        self._clock = clock
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque()

    def note(self, samples: int) -> None:
        """Take the count of samples in, as of now."""
        now_s = self._clock.now()
        self._points.append((now_s, samples))
        while len(self._points) > 2 and self._points[1][0] < now_s - self._window_s:
            self._points.popleft()

    def per_second(self) -> float:
        """Samples per second; 0 before there is anything to divide."""
        if len(self._points) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._points[0], self._points[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
