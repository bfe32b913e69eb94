"""Work on several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

One = TypeVar("One")
Given = TypeVar("Given")


def at_once(work: Callable[[One], Given], each: Iterable[One]) -> list[Given]:
    """What the work gives for each, on a thread of its own; all begin together, and an exception of one is raised."""
    ones = list(each)
    gate = threading.Barrier(len(ones))

    def begin(one: One) -> Given:
        gate.wait(60)
        return work(one)

    with ThreadPoolExecutor(len(ones)) as pool:
        return list(pool.map(begin, ones))
