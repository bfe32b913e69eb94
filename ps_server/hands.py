"""Threads that share what one call brings: a program's segments, and those in shared memory, on which copies and rules
work without the interpreter lock. Where numbers come through a socket, that is slower, and one thread has enough to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

FEWEST = 2
"""Things for a thread to be worth waking: a segment of 1 MiB takes some 100 µs, waking a thread some 30."""


class Hands:
    """As many threads as there are cores, the caller's among them."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or len(os.sched_getaffinity(0))
        self._others = ThreadPoolExecutor(max(1, self._threads - 1), "hand")

    def each(self, work: Callable[[T], R], things: Sequence[T]) -> list[R]:
        """What `work` gives for each thing, in their order; where it fails for one, that is raised when all have ended.

        Each thread takes neighbours, so that two do not write into one page.
        """
        count = min(self._threads, len(things) // FEWEST)
        if count < 2:
            return [work(thing) for thing in things]
        cuts = [len(things) * number // count for number in range(count + 1)]
        shares = [things[first:last] for first, last in pairwise(cuts)]
        others = [self._others.submit(list, map(work, share)) for share in shares[1:]]
        try:
            done = [work(thing) for thing in shares[0]]
        finally:
            wait(others)
        return [*done, *(one for other in others for one in other.result())]

    def close(self) -> None:
        """End the threads."""
        self._others.shutdown()
