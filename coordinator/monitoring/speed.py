"""Training throughput: current, and mean since the run started or was resumed."""

from __future__ import annotations

from collections import deque

from dbelief.process.clock import Clock


class Speed:
    """Samples per second over a window of a few seconds."""

    def __init__(self, clock: Clock, window_s: float = 5.0) -> None:
        self._clock = clock
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] | None = None  # before the first increase of the count
        self._last: tuple[float, int] | None = None  # at its last increase

    def note(self, samples: int) -> None:
        """Record the count of samples, as of now."""
        now_s = self._clock.now()
        if self._points and samples > self._points[-1][1]:
            self._first = self._first or self._points[-1]
            self._last = now_s, samples
        self._points.append((now_s, samples))
        while len(self._points) > 2 and self._points[1][0] < now_s - self._window_s:
            self._points.popleft()

    def per_second(self) -> float:
        """Samples per second over the window; 0 with fewer than two counts."""
        if len(self._points) < 2:
            return 0.0
        return _rate(self._points[0], self._points[-1])

    def mean(self) -> float:
        """Mean samples per second from before the first increase to the last one; 0 before there is any."""
        return _rate(self._first, self._last) if self._first is not None and self._last is not None else 0.0


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    (t0, n0), (t1, n1) = first, last
    return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
