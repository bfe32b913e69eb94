"""Polling with growing pauses, because the ranks may share the cores that they wait on."""

from __future__ import annotations

from collections.abc import Callable

from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime

FIRST_S = 20e-6
LONGEST_S = 2e-3
_NEVER = runtime.event()


def poll(clock: Clock, done: Callable[[], bool], deadline_s: float) -> bool:
    """Poll until `done` or the deadline; return which. A wait lasts at most 2 ms longer than necessary."""
    until_s = clock.now() + deadline_s
    pause_s = FIRST_S
    while not done():
        left_s = until_s - clock.now()
        if left_s <= 0:
            return False
        clock.wait(_NEVER, min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_S)
    return True
