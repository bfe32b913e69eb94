"""Watchdog of streams: a broken network path ends no stream, so a wait without progress has to be ended here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from dbelief.process.clock import Clock, SystemClock
from dbelief.process.runtime import runtime

_LOOKS = 8
"""Checks within the time after which a stream is cancelled; at least one per second."""


Progress = Callable[[], int | None]
"""Returns a number that changes with every progress, or None while no progress is expected."""


class Cancellable(Protocol):
    """A stream that can be watched."""

    def cancel(self) -> None:
        """Cancel the stream."""


class Watch:
    """One wait on a stream: a `with` block.

    Attributes
    ----------
    expired
        Whether the watchdog has cancelled the stream.
    """

    __slots__ = ("_patience_s", "_progress", "_seen", "_since_s", "_stream", "_watches", "expired")

    def __init__(
        self,
        watches: set[Watch],
        stream: Cancellable,
        patience_s: float,
        progress: Progress | None,
        now_s: float,
    ) -> None:
        self._watches, self._stream, self._patience_s, self._progress = watches, stream, patience_s, progress
        self._seen, self._since_s = progress() if progress is not None else 0, now_s
        self.expired = False

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._watches.add(self)
        return self

    def __exit__(self, *raised: object) -> None:
        """End it."""
        self._watches.remove(self)

    def look(self, now_s: float, before_s: float) -> None:
        """Cancel the stream if the time without progress is over; `before_s`: the time of the previous check."""
        if self._progress is not None:
            seen = self._progress()
            suspended = now_s - before_s > self._patience_s / 2  # this process was stopped: a reply may be unread
            if suspended or seen is None or seen != self._seen:
                self._seen, self._since_s = seen, now_s
        if now_s - self._since_s >= self._patience_s and not self.expired:
            self.expired = True
            self._stream.cancel()


class Watchdog:
    """Watchdog that cancels streams on which a wait makes no progress for `deadline_s`."""

    def __init__(self, deadline_s: float, clock: Clock | None = None) -> None:
        self.deadline_s = deadline_s
        self._clock = clock or SystemClock()
        self._watches: set[Watch] = set()  # changed, and copied, by one operation each: without a lock
        self._closed = runtime.event()
        self._thread = runtime.spawn(self._run, "watchdog")

    def watching(self, stream: Cancellable, patience_s: float | None = None, progress: Progress | None = None) -> Watch:
        """Watch a stream while the `with` block waits for it.

        Parameters
        ----------
        patience_s
            Time without progress after which the stream is cancelled; None: `deadline_s`.
        progress
            None: the complete wait is limited, even if this process was suspended: the caller retries in another one.
        """
        patience_s = self.deadline_s if patience_s is None else patience_s
        return Watch(self._watches, stream, patience_s, progress, self._clock.now())

    def close(self) -> None:
        """Stop the watchdog."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        before_s = self._clock.now()
        while not self._clock.wait(self._closed, min(1.0, self.deadline_s / _LOOKS)):
            now_s = self._clock.now()
            for watch in list(self._watches):
                watch.look(now_s, before_s)
            before_s = now_s
