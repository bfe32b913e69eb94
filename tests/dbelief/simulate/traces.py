"""Delays of replicas whose cycles take random times: files for tests and benchmarks, without a simulation of machines.

A cycle of a replica is a fetch, `pushes` pushes at equal distances, and a travel time of none; cycles are lognormal. In
rounds, a round ends when so many replicas have pushed as its quorum has.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dbelief.simulate.delays import DOWNPOUR, ELASTIC, FETCH, LOST, PUSH, ROUND, ROUNDS, DelayTrace

Events = list[tuple[int, int]]


def trace_of(strategy: str, replicas: int, events: Sequence[tuple[int, int]]) -> DelayTrace:
    """A trace of events that are written by hand."""
    kind, replica = np.array(events, np.int64).reshape(-1, 2).T
    return DelayTrace(strategy, replicas, kind.astype(np.uint8), replica.astype(np.int32))


def drawn(
    strategy: str, replicas: int, pushes: int, seed: int = 0, spread: float = 0.3, each: tuple[int, int] = (1, 1)
) -> DelayTrace:
    """At least so many pushes of replicas whose cycles vary by `spread` (of the logarithm) around the same mean.

    `each`: fetches and pushes of a cycle, of which one number is 1.
    """
    rng = np.random.default_rng(seed)
    if strategy == ROUNDS:
        return _in_rounds(replicas, pushes, rng, spread)
    ends = [(first, number) for number, first in enumerate(rng.lognormal(0, spread, replicas).tolist())]
    heapq.heapify(ends)
    events: Events = [(FETCH, number) for number in range(replicas)]
    # What is left of a replica's cycle: a cycle of several fetches has its push at its end, one of several pushes has
    # its fetch at its beginning.
    fetches, of_cycle = each
    cycle: list[int] = [FETCH] * (fetches - 1) + [PUSH] * of_cycle
    rest = [cycle.copy() for _ in range(replicas)]
    while pushes:
        now, number = heapq.heappop(ends)
        kind = rest[number].pop(0)
        events.append((kind, number))
        pushes -= kind == PUSH
        if not rest[number]:
            rest[number] = cycle.copy()
            if strategy == DOWNPOUR:
                events.append((FETCH, number))
        heapq.heappush(ends, (now + float(rng.lognormal(0, spread)), number))
    return trace_of(strategy, replicas, events)


def _in_rounds(replicas: int, pushes: int, rng: np.random.Generator, spread: float, share: float = 1.0) -> DelayTrace:
    """Rounds of all replicas, which push in an order of their own."""
    events: Events = []
    for _ in range(max(1, -(-pushes // replicas))):
        order = np.argsort(rng.lognormal(0, spread, replicas)).tolist()
        events += [(FETCH, number) for number in range(replicas)]
        events += [(PUSH, number) for number in order]
        events.append((ROUND, -1))
    return trace_of(ROUNDS, replicas, events)


__all__ = ["DOWNPOUR", "ELASTIC", "FETCH", "LOST", "PUSH", "ROUND", "ROUNDS", "drawn", "trace_of"]
