"""Replay of the logged exchanges of elastic averaging, in one thread and to the last bit.

The result of asynchronous workers depends on the order in which each segment applied their exchanges, and on the
centre's version that each worker started with. Both are logged. A worker sends its own weights, and receives the centre
as its exchange found it. So its rows are computed in sequence, each exchange as soon as it is next in every segment.

Cost: a gradient for each mini-batch, a rule for each exchange and segment; the memory of `ElasticWeights` and one more
vector for each incarnation of a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import AppliedPush, Pusher
from dbelief.errors import RuntimeFailure
from dbelief.optim import Rule
from dbelief.rundir.record import ComputedBatch

from .segment_replay import ReplayedSegment, begin, push_name, take, values_of


class Worker(Protocol):
    """Interface of one incarnation of a worker."""

    def begin(self, centre: np.ndarray) -> None:
        """Start at a centre."""

    def sent(self) -> np.ndarray:
        """(N,) float32: a copy of the worker's own weights."""

    def train(self, row: ComputedBatch, centre: np.ndarray | None) -> None:
        """Train a mini-batch, and move by the previous centre if there was an exchange; `centre` is overwritten."""


def replay_exchanges(
    initial: np.ndarray,
    spans: Sequence[SegmentSpan],
    rule: Rule,
    applied_rows: Iterable[AppliedPush],
    computed_rows: Iterable[ComputedBatch],
    worker: Callable[[], Worker],
) -> np.ndarray:
    """Replay the logged exchanges in their logged order.

    Parameters
    ----------
    initial, spans, applied_rows
        See `replay`.
    computed_rows
        For each incarnation, in the order of its mini-batches.
    worker
        Creates a new worker.

    Returns
    -------
    (N,) float32
        The centre after the last logged exchange: the bits of the run itself.

    Raises
    ------
    RuntimeFailure
        The logs are incomplete; names the missing exchange or version.
    """
    applied, computed = list(applied_rows), list(computed_rows)
    recipes = {(row.pusher, row.sequence): row for row in computed}
    segments = begin(initial, spans, rule, applied, recipes)
    workers: dict[Pusher, _ReplayedWorker] = {}
    for row in computed:
        workers.setdefault(row.pusher, _ReplayedWorker(worker(), len(initial))).rows.append(row)
    for replayed in workers.values():
        for segment, version in zip(segments, replayed.rows[0].versions, strict=True):
            segment.needed[version] += 1
    for segment in segments:
        segment.keep()
    while any(segment.rows for segment in segments):
        moved = [replayed.advance(segments) for replayed in workers.values()]
        moved += [_advance(segment, rule, workers) for segment in segments]
        if not any(moved):
            heads = [f"{push_name(one.rows[0])} into segment {one.span.index}" for one in segments if one.rows]
            raise RuntimeFailure(f"by the logs, each of these follows one that is missing: {', '.join(heads)}")
    return values_of(segments)


@dataclass
class _ReplayedWorker:
    """A worker during its replay; `waits` counts the segments that have not applied the current exchange."""

    worker: Worker
    size: int
    rows: deque[ComputedBatch] = field(default_factory=deque)
    began: bool = False
    sent: np.ndarray | None = None
    waits: int = 0

    def __post_init__(self) -> None:
        self.centre = aligned(self.size, np.float32)  # aligned like a worker's

    def advance(self, segments: Sequence[ReplayedSegment]) -> bool:
        """Train until an answer is required; returns whether any step was made."""
        if self.waits or not self.rows or not (self.began or self._begin(segments)):
            return False
        if self.sent is not None:  # all segments have answered
            self.worker.train(self.rows.popleft(), self.centre)
            self.sent = None
        while self.rows and not self.rows[0].pushed:
            self.worker.train(self.rows.popleft(), None)
        if self.rows:
            self.sent, self.waits = self.worker.sent(), len(segments)
        return True

    def _begin(self, segments: Sequence[ReplayedSegment]) -> bool:
        self.began = take(segments, self.rows[0].versions, self.centre)
        if self.began:
            self.worker.begin(self.centre)
        return self.began


def _advance(segment: ReplayedSegment, rule: Rule, workers: dict[Pusher, _ReplayedWorker]) -> bool:
    """Apply a segment's rows as far as workers have sent; returns whether any was applied."""
    version = segment.version
    while segment.rows:
        replayed, sequence = workers[segment.rows[0].pusher], segment.rows[0].sequence
        if replayed.sent is None or replayed.rows[0].sequence != sequence:
            break
        replayed.centre[segment.span.start : segment.span.stop] = segment.values
        segment.apply(rule, replayed.sent)
        replayed.waits -= 1
    return segment.version > version
