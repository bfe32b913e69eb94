"""Injectable clocks: code that waits or measures receives a clock, so that a test can control time."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from dbelief.process.runtime import Event, runtime

T = TypeVar("T")


class Clock(Protocol):
    """Interface of a clock."""

    def now(self) -> float:
        """Monotonic seconds since an arbitrary start; for durations and deadlines."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; for display, never for durations."""
        ...

    def wait(self, event: Event, timeout_s: float) -> bool:
        """Block until `event` is set or `timeout_s` seconds have passed; returns whether it is set."""
        ...

    def poll(self, poller: select.poll, timeout_s: float) -> list[tuple[int, int]]:
        """Block until a file of the poller is ready or `timeout_s` seconds have passed; returns the ready ones."""
        ...


class SystemClock:
    """The clock of the process's runtime."""

    def now(self) -> float:
        """Monotonic seconds since an arbitrary start."""
        return runtime.monotonic()

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return runtime.wall()

    def wait(self, event: Event, timeout_s: float) -> bool:
        """Block until `event` is set or `timeout_s` seconds have passed (infinity is allowed)."""
        return event.wait(min(timeout_s, threading.TIMEOUT_MAX))

    def poll(self, poller: select.poll, timeout_s: float) -> list[tuple[int, int]]:
        """Block until one of the poller's files is ready or `timeout_s` seconds have passed (at most 24 days)."""
        return poller.poll(min(max(1e3 * timeout_s, 0), 2**31 - 1))  # a negative timeout would never expire


class ManualClock:
    """Clock that is advanced explicitly; safe to share between threads.

    Parameters
    ----------
    start_s
        First value of `now()`.
    wall_start_s
        First value of `wall()`, seconds since 1970-01-01 UTC.
    autojump
        Whether `wait` advances the clock itself instead of blocking: a single-threaded test of a loop that waits
        needs no second thread to advance the clock.
    """

    # An Event, or a file, does not notify this clock when it is set, so a blocked wait polls at this interval, in
    # real time.
    _LOOK_S = 0.001

    def __init__(self, start_s: float = 0.0, wall_start_s: float = 1_700_000_000.0, autojump: bool = False) -> None:
        self._start_s = start_s
        self._wall_start_s = wall_start_s
        self._autojump = autojump
        self._now_s = start_s
        self._waiting = 0
        self._changed = threading.Condition()

    def now(self) -> float:
        """Current time in seconds."""
        with self._changed:
            return self._now_s

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC, advancing with `now()`."""
        return self._wall_start_s + self.now() - self._start_s

    def advance(self, seconds: float) -> None:
        """Advance the clock and wake every `wait` whose timeout has expired.

        Raises
        ------
        ValueError
            `seconds` is negative: this clock is monotonic too.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot be advanced by {seconds} s")
        with self._changed:
            self._now_s += seconds
            self._changed.notify_all()

    def wait(self, event: Event, timeout_s: float) -> bool:
        """Block until `event` is set or the clock was advanced by `timeout_s`; returns whether it is set."""
        return self._until(event.is_set, timeout_s)

    def poll(self, poller: select.poll, timeout_s: float) -> list[tuple[int, int]]:
        """Block until a file of the poller is ready or the clock was advanced by `timeout_s`; returns ready ones."""
        return self._until(lambda: poller.poll(0), timeout_s)

    def _until(self, look: Callable[[], T], timeout_s: float) -> T:
        """Poll until there is a result, or the timeout has expired; returns the last result."""
        with self._changed:
            until_s = self._now_s + timeout_s
            seen = look()
            if self._autojump and not seen:
                self._now_s = max(self._now_s, until_s)
            self._waiting += 1
            self._changed.notify_all()
            try:
                while not seen and self._now_s < until_s:
                    self._changed.wait(self._LOOK_S)
                    seen = look()
            finally:
                self._waiting -= 1
                self._changed.notify_all()
            return seen

    def until_waiting(self, count: int, timeout_s: float = 5.0) -> bool:
        """Block until `count` threads are inside `wait`, so that a test advances time at the right moment.

        `timeout_s` is real time; False when it ran out.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting >= count, timeout_s)
