"""Threads that share what one call brings: a program's segments, and those in shared memory, on which copies and rules
work without the interpreter lock. Where numbers come through a socket, that is slower, and one thread has enough to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MIN_ITEMS_PER_THREAD = 2
"""Things for a thread to be worth waking: a segment of 1 MiB takes some 100 µs, waking a thread some 30."""


class ThreadPool:
    """As many threads as there are cores, the caller's among them."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or len(os.sched_getaffinity(0))
        self._others = ThreadPoolExecutor(max(1, self._threads - 1), "hand")

    def map(self, work: Callable[[T], R], things: Sequence[T]) -> list[R]:
        """What `work` gives for each thing, in their order; where it fails for one, that is raised when all have ended.

        A thread takes some neighbours at a time, so that two seldom write into one page, and the next ones when it is
        done with them: one whose core is wanted elsewhere keeps nobody waiting for long.
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
        """End the threads."""
        self._others.shutdown()
