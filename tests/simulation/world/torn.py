"""Pushes without a lock (Hogwild), torn: other tasks run while a rule has changed only half of a segment.

A task is atomic between two operations on locks, and a rule has none. On a machine other threads read and write while
its loop runs. Here the first half of the numbers is changed, then others may run, then the second half is changed. Only
pushes that have released their segment's lock are torn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dbelief.optim import apply_rule
from ps_server.store.segment import ReleasedLock

from .scheduler import Scheduler, Task

STALLS, STALL_S = 0.5, 0.05
"""Share of the torn pushes that stall between their halves, and mean time of a stall."""


@contextmanager
def torn_pushes(scheduler: Scheduler) -> Iterator[None]:
    """Tear the pushes of tasks that work on a segment without its lock."""
    outside: set[Task | None] = set()

    class Noted(ReleasedLock):
        """Notes the task between the release of the lock and its acquisition."""

        def __enter__(self) -> None:
            super().__enter__()
            outside.add(scheduler.current)

        def __exit__(self, *raised: object) -> None:
            outside.discard(scheduler.current)
            super().__exit__(*raised)

    def apply(rule: Any, w: Any, gradient: Any, states: Any, rate: Any, step: int, before: Any = None) -> None:
        if scheduler.current not in outside:
            apply_rule(rule, w, gradient, states, rate, step, before)
            return
        middle = len(w) // 2
        for half in (slice(0, middle), slice(middle, None)):
            there = None if before is None else before[half]
            apply_rule(rule, w[half], gradient[half], tuple(state[half] for state in states), rate, step, there)
            if half.start == 0:
                _let_others_run(scheduler)

    module = "ps_server.store.segment"
    with mock.patch(f"{module}.ReleasedLock", Noted), mock.patch(f"{module}.apply_rule", apply):
        yield


def _let_others_run(scheduler: Scheduler) -> None:
    if scheduler.random.random() < STALLS:
        scheduler.wait(scheduler.random.expovariate(1 / STALL_S))
    else:
        scheduler.maybe_switch()
