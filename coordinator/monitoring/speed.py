"""How fast training goes, now and over the whole leg of a run."""

from __future__ import annotations

from collections import deque

from dbelief.process.clock import Clock


class Speed:
    """Samples per second over the last few seconds."""

    def __init__(self, clock: Clock, window_s: float = 5.0) -> None:
        self._clock = clock
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] | None = None  # before the count rose for the first time
        self._last: tuple[float, int] | None = None  # when it rose last

    def note(self, samples: int) -> None:
        """Take the count of samples in, as of now."""
        now_s = self._clock.now()
        if self._points and samples > self._points[-1][1]:
            self._first = self._first or self._points[-1]
            self._last = now_s, samples
        self._points.append((now_s, samples))
        while len(self._points) > 2 and self._points[1][0] < now_s - self._window_s:
            self._points.popleft()

    def per_second(self) -> float:
        """Samples per second; 0 before there is anything to divide."""
        if len(self._points) < 2:
            return 0.0
        return _rate(self._points[0], self._points[-1])

    def mean(self) -> float:
        """Samples per second from the first to the last that were counted; 0 before there are any."""
        return _rate(self._first, self._last) if self._first is not None and self._last is not None else 0.0


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    (t0, n0), (t1, n1) = first, last
    return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
