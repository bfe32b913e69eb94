"""Delays of replicas whose cycles take lognormal times, for benchmarks and tests that simulate no machines.

A cycle of a replica is the time from a fetch to the push of what it computes from it; nothing takes time between a push
and the next fetch. Cycles of all replicas have one mean.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from dbelief.simulate.replay.delays import DOWNPOUR, FETCH, PUSH, ROUND, ROUNDS, DelayTrace

Events = list[tuple[int, int]]


def trace_of(strategy: str, replicas: int, events: Sequence[tuple[int, int]]) -> DelayTrace:
    """A trace of these events, kind and replica each."""
    kind, replica = np.array(events, np.int64).reshape(-1, 2).T
    return DelayTrace(strategy, replicas, kind.astype(np.uint8), replica.astype(np.int32))


def drawn(
    strategy: str,
    replicas: int,
    pushes: int,
    seed: int = 0,
    spread: float = 0.3,
    each: tuple[int, int] = (1, 1),
    quorum: int | None = None,
) -> DelayTrace:
    """So many pushes, or in rounds a few more.

    Parameters
    ----------
    spread
        Standard deviation of the logarithm of a cycle's time.
    each
        Of Downpour, fetches and pushes in a cycle, one of them 1: at equal distances, or at its end.
    quorum
        Pushes that end a round; None: those of all replicas.
    """
    rng = np.random.default_rng(seed)

    def times() -> Iterator[float]:
        while True:
            yield from rng.lognormal(0, spread, 1024).tolist()

    if strategy == ROUNDS:
        return trace_of(strategy, replicas, _in_rounds(replicas, pushes, quorum or replicas, times()))
    return trace_of(strategy, replicas, _free(replicas, pushes, each if strategy == DOWNPOUR else (0, 1), times()))


def _free(replicas: int, pushes: int, each: tuple[int, int], times: Iterator[float]) -> Events:
    """Replicas that never wait; `each` with 0 fetches: only before the first push."""
    fetches, of_cycle = each
    steps = max(1, fetches) * of_cycle
    events: Events = [(FETCH, number) for number in range(replicas)]
    due = [(next(times) / steps, number, 1) for number in range(replicas)]
    heapq.heapify(due)
    while pushes:
        now, number, step = heapq.heappop(due)
        if fetches <= 1 or step == steps:
            events.append((PUSH, number))
            pushes -= 1
        if fetches > 1 or (fetches and step == steps):
            events.append((FETCH, number))
        heapq.heappush(due, (now + next(times) / steps, number, step % steps + 1))
    return events


def _in_rounds(replicas: int, pushes: int, quorum: int, times: Iterator[float]) -> Events:
    """Rounds that end with a quorum; a replica that is late goes on at once, at the round that is open then."""
    events: Events = []
    due: list[tuple[float, int, int]] = []  # end of a cycle, its replica, and the round of its fetch
    waiting = list(range(replicas))  # for the next round
    now, round_, arrived = 0.0, 0, 0

    def begin(number: int) -> None:
        events.append((FETCH, number))
        heapq.heappush(due, (now + next(times), number, round_))

    while pushes > 0 or arrived:
        for number in waiting:
            begin(number)
        waiting.clear()
        while arrived < quorum:
            now, number, own = heapq.heappop(due)
            events.append((PUSH, number))
            pushes -= 1
            if own < round_:
                begin(number)
            else:
                waiting.append(number)
                arrived += 1
        events.append((ROUND, -1))
        round_, arrived = round_ + 1, 0
    return events
