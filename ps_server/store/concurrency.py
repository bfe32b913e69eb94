"""Concurrency within a shard: the lock of a segment, and the threads for the segments of one request.

The lock measures how long threads waited for it. An uncontended acquisition costs two Python calls, some 0.3 µs, where
a push of a small segment takes 10 and copying a mebibyte 30. Only a thread that has to wait reads the clock. The sums
are written with the lock held, so no update is lost.

The thread pool is for programs and for segments in shared memory: on these, copies and rules run without the
interpreter lock. Numbers that arrive through a socket are slower to receive than to apply, and one thread has enough
capacity for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dbelief.process.runtime import runtime

T = TypeVar("T")
R = TypeVar("R")

ADJACENT_ITEMS = 2
"""Items that a thread takes at a time."""
MIN_BYTES_PER_THREAD = 1 << 20
"""Bytes of items that justify waking a thread: 1 MiB takes some 100 µs, waking a thread some 30."""


class TimedLock:
    """A lock that is not re-entrant.

    Attributes
    ----------
    waits, waited_s
        Number of acquisitions that found it held, and the sum of their waiting times.
    """

    __slots__ = ("_take", "release", "waited_s", "waits")

    def __init__(self) -> None:
        lock = runtime.lock()
        self._take, self.release = lock.acquire, lock.release
        self.waits = 0
        self.waited_s = 0.0

    def acquire(self) -> None:
        """Acquire the lock, waiting while another thread holds it."""
        if not self._take(False):
            self._wait()

    __enter__ = acquire  # an alias: no extra call

    def _wait(self) -> None:
        began_s = runtime.monotonic()
        self._take()
        self.waited_s += runtime.monotonic() - began_s
        self.waits += 1

    def __exit__(self, *raised: object) -> None:
        self.release()


class ThreadPool:
    """Thread pool with one thread per available core, the calling thread included."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or len(os.sched_getaffinity(0))
        self._others = runtime.executor(max(1, self._threads - 1), "segments")

    def map(self, work: Callable[[T], R], things: Sequence[T], total_bytes: int) -> list[R]:
        """Results of `work` for each item, in order; a failure of one item is raised when all threads have finished.

        `total_bytes`: size of all items; few bytes are all left to the calling thread.

        A thread takes a few adjacent items at a time, so that two threads seldom write into one page, and takes the
        next ones when it is done: a thread whose core is busy with other work does not delay the rest for long.
        """
        count = min(self._threads, len(things) // ADJACENT_ITEMS, total_bytes // MIN_BYTES_PER_THREAD)
        if count < 2:
            return [work(thing) for thing in things]
        made: dict[int, list[R]] = {}
        shares = iter(range(0, len(things), ADJACENT_ITEMS))

        def take(shares: Iterator[int]) -> None:
            for first in shares:
                made[first] = [work(thing) for thing in things[first : first + ADJACENT_ITEMS]]

        others = [self._others.submit(take, shares) for _ in range(count - 1)]
        try:
            take(shares)
        finally:
            for other in others:
                other.exception()  # waits for it
        for other in others:
            other.result()
        return [one for first in sorted(made) for one in made[first]]

    def close(self) -> None:
        """Stop the threads."""
        self._others.shutdown()
