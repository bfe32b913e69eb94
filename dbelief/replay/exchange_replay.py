"""Logged exchanges of elastic averaging once more, in one thread and to the last bit.

What workers that do not wait for each other make of a job is decided by the order in which each segment took their
exchanges, and by what of the centre each of them began with. Both are logged. What a worker sends is its own weights as
they were, and what it gets is the centre as its exchange found it: so its rows are computed one after the other, each
exchange as soon as it is the next one of every segment.

Cost: a gradient for each mini-batch, a rule for each exchange and segment; what `OwnWeights` holds and one vector more
for each life of a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import Pusher
from dbelief.errors import RuntimeFailure
from dbelief.optim import Rule
from dbelief.rundir.recorded import AppliedPush, ComputedBatch

from .segment_replay import Segment, begin, said, values_of


class Worker(Protocol):
    """One life of a worker, as this needs it."""

    def begin(self, centre: np.ndarray) -> None:
        """Start at a centre."""

    def sent(self) -> np.ndarray:
        """(N,) float32: own weights as they are, a copy."""

    def train(self, row: ComputedBatch, centre: np.ndarray | None) -> None:
        """Train a mini-batch, and move by the centre as it was, where there was an exchange; it is used up."""


def replay_exchanges(
    initial: np.ndarray,
    spans: Sequence[SegmentSpan],
    rule: Rule,
    applied_rows: Iterable[AppliedPush],
    computed_rows: Iterable[ComputedBatch],
    worker: Callable[[], Worker],
) -> np.ndarray:
    """Take the logged exchanges in their logged order.

    Parameters
    ----------
    initial, spans, applied_rows
        As `replay` takes them.
    computed_rows
        Of each life, in the order of its mini-batches.
    worker
        Makes a new one.

    Returns
    -------
    (N,) float32
        The centre after the last logged exchange: the bits of the run itself.

    Raises
    ------
    Failure
        Where the logs are not whole; names the exchange, or the version, that is missing.
    """
    applied, computed = list(applied_rows), list(computed_rows)
    recipes = {(row.pusher, row.sequence): row for row in computed}
    segments = begin(initial, spans, rule, applied, recipes)
    lives: dict[Pusher, _Life] = {}
    for row in computed:
        lives.setdefault(row.pusher, _Life(worker(), len(initial))).rows.append(row)
    for life in lives.values():
        for segment, version in zip(segments, life.rows[0].versions, strict=True):
            segment.needed[version] += 1
    for segment in segments:
        segment.keep()
    while any(segment.rows for segment in segments):
        moved = [life.go_on(segments) for life in lives.values()]
        moved += [_advance(segment, rule, lives) for segment in segments]
        if not any(moved):
            heads = [f"{said(one.rows[0])} into segment {one.span.index}" for one in segments if one.rows]
            raise RuntimeFailure(f"each of these came, by the logs, after one that is not there: {', '.join(heads)}")
    return values_of(segments)


@dataclass
class _Life:
    """A worker on its way through its rows; `waits` counts the segments that have not taken the exchange at hand."""

    worker: Worker
    size: int
    rows: deque[ComputedBatch] = field(default_factory=deque)
    began: bool = False
    sent: np.ndarray | None = None
    waits: int = 0

    def __post_init__(self) -> None:
        self.centre = aligned(self.size, np.float32)  # as a worker has it

    def go_on(self, segments: Sequence[Segment]) -> bool:
        """Train as far as it can without an answer; whether that is any further."""
        if self.waits or not self.rows or not (self.began or self._begin(segments)):
            return False
        if self.sent is not None:  # all have answered
            self.worker.train(self.rows.popleft(), self.centre)
            self.sent = None
        while self.rows and not self.rows[0].pushed:
            self.worker.train(self.rows.popleft(), None)
        if self.rows:
            self.sent, self.waits = self.worker.sent(), len(segments)
        return True

    def _begin(self, segments: Sequence[Segment]) -> bool:
        versions = list(zip(segments, self.rows[0].versions, strict=True))
        if any(version not in segment.kept for segment, version in versions):
            return False
        for segment, version in versions:
            self.centre[segment.span.start : segment.span.stop] = segment.kept[version]
            segment.release(version)
        self.worker.begin(self.centre)
        self.began = True
        return True


def _advance(segment: Segment, rule: Rule, lives: dict[Pusher, _Life]) -> bool:
    """Take a segment's rows as far as workers have sent; whether there was any."""
    version = segment.version
    while segment.rows:
        life, sequence = lives[segment.rows[0].pusher], segment.rows[0].sequence
        if life.sent is None or life.rows[0].sequence != sequence:
            break
        life.centre[segment.span.start : segment.span.stop] = segment.values
        segment.apply(rule, life.sent)
        life.waits -= 1
    return segment.version > version
