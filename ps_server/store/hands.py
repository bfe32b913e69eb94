"""Thread pool for the segments of one request: those of a program, and those in shared memory.

On these, copies and rules run without the interpreter lock. Numbers that arrive through a socket are slower to receive
than to apply, and one thread has enough capacity for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MIN_ITEMS_PER_THREAD = 2
"""Items that justify waking a thread: a segment of 1 MiB takes some 100 µs, waking a thread some 30."""


class ThreadPool:
    """Thread pool with one thread per available core, the calling thread included."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or len(os.sched_getaffinity(0))
        self._others = ThreadPoolExecutor(max(1, self._threads - 1), "hand")

    def map(self, work: Callable[[T], R], things: Sequence[T]) -> list[R]:
        """Results of `work` for each item, in order; a failure of one item is raised when all threads have finished.

        A thread takes a few adjacent items at a time, so that two threads seldom write into one page, and takes the
        next ones when it is done: a thread whose core is busy with other work does not delay the rest for long.
        """
        count = min(self._threads, len(things) // MIN_ITEMS_PER_THREAD)
        if count < 2:
            return [work(thing) for thing in things]
        made: dict[int, list[R]] = {}
        shares = iter(range(0, len(things), MIN_ITEMS_PER_THREAD))

        def take(shares: Iterator[int]) -> None:
            for first in shares:
                made[first] = [work(thing) for thing in things[first : first + MIN_ITEMS_PER_THREAD]]

        others = [self._others.submit(take, shares) for _ in range(count - 1)]
        try:
            take(shares)
        finally:
            wait(others)
        for other in others:
            other.result()
        return [one for first in sorted(made) for one in made[first]]

    def close(self) -> None:
        """Stop the threads."""
        self._others.shutdown()
