"""The queue of events that are due: a binary heap of records; importing this module imports numba.

An event is a time in seconds and a number: who it is for, and the incarnation that it was made for, so that an event
of a process that has failed meanwhile is recognised and skipped. Events of one time leave in an order that depends on
the order of their insertion alone.
"""

from __future__ import annotations

import numpy as np

from dbelief.arrays.jit import inlined

EVENT = np.dtype([("at_s", np.float64), ("what", np.int64)], align=True)


def make_queue(capacity: int) -> np.ndarray:
    """An empty queue for so many events at once: records, the first of which has the number of events."""
    return np.zeros(capacity + 1, EVENT)


@inlined
def put(queue: np.ndarray, at_s: float, who: int, incarnation: int) -> None:
    """Insert an event. Cost: the logarithm of the number of events."""
    queue[0].what += 1
    place = queue[0].what
    while place > 1:
        above = place >> 1
        if queue[above].at_s <= at_s:
            break
        queue[place].at_s, queue[place].what = queue[above].at_s, queue[above].what
        place = above
    queue[place].at_s, queue[place].what = at_s, (np.int64(incarnation) << 32) | who


@inlined
def take(queue: np.ndarray) -> tuple[float, int, int]:
    """Remove the event that is due next: time, who, incarnation."""
    first_s, first = queue[1].at_s, queue[1].what
    count = queue[0].what
    last_s, last = queue[count].at_s, queue[count].what
    count -= 1
    queue[0].what = count
    place = 1
    while True:
        below = 2 * place
        if below > count:
            break
        if below < count and queue[below + 1].at_s < queue[below].at_s:
            below += 1
        if last_s <= queue[below].at_s:
            break
        queue[place].at_s, queue[place].what = queue[below].at_s, queue[below].what
        place = below
    queue[place].at_s, queue[place].what = last_s, last
    return first_s, first & 0xFFFFFFFF, first >> 32
