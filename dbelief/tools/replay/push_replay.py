"""Replay of logged gradient pushes, in one thread and to the last bit.

The result of asynchronous replicas depends on two things that no seed fixes: the order in which each segment applied
the pushes, and the versions that each gradient was computed from. Both are logged, the first by the shards, the second
by the replicas. For segment s, with v counting the rows of its log:

    w_s(v + 1) = rule(w_s(v), the gradient that row v names)

A gradient can be computed as soon as every w_s(v) that it was computed from exists. The log of a real run always
contains such a gradient; a log that does not is incomplete, and is rejected. Segments are not ordered relative to each
other, and need not be.

Cost: one gradient per push and one rule per push and segment. Values are kept by version until the last gradient
that needs them is computed, a gradient until the last segment has applied it: about one vector per replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.core.absent import Ranges
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import AppliedPush
from dbelief.errors import RuntimeFailure
from dbelief.optim import Rule
from dbelief.rundir.record import ComputedBatch

from .segment_replay import PushId, ReplayedSegment, begin, push_name, take, values_of

GradientOf = Callable[[np.ndarray, ComputedBatch], tuple[np.ndarray, Ranges]]
"""Function from (N,) float32 parameters and a row to the (N,) float32 gradient that was pushed, and the ranges that
took no part. Keeps neither array."""


def replay(
    initial: np.ndarray,
    spans: Sequence[SegmentSpan],
    rule: Rule,
    applied_rows: Iterable[AppliedPush],
    computed_rows: Iterable[ComputedBatch],
    gradient_of: GradientOf,
) -> np.ndarray:
    """Apply the logged pushes in their logged order, each gradient computed from the versions logged for it.

    Parameters
    ----------
    initial
        (N,) float32, version 0 of every segment; not modified.
    spans
        The segment table, by rising index; it covers the N numbers in order.
    applied_rows
        In the order of application per segment; rows of different segments may be interleaved in any way.
    computed_rows
        In any order.

    Returns
    -------
    (N,) float32
        The parameters after the last logged push: where n_fetch = n_push = 1, the bits of the run itself.

    Raises
    ------
    RuntimeFailure
        The logs are incomplete; names the missing push or version.
    """
    applied, recipes = list(applied_rows), {(row.pusher, row.sequence): row for row in computed_rows}
    segments = begin(initial, spans, rule, applied, recipes)
    waiting = Counter((row.pusher, row.sequence) for row in applied)
    for push in waiting:
        for segment, version in zip(segments, recipes[push].versions, strict=True):
            segment.needed[version] += 1
    run = _Run(segments, rule, recipes, waiting, gradient_of)
    run.to_the_end(len(initial))
    return values_of(segments)


@dataclass
class _Run:
    """State of a replay: all segments, rows by push, number of segments still to apply each, computed gradients."""

    segments: list[ReplayedSegment]
    rule: Rule
    recipes: dict[PushId, ComputedBatch]
    waiting: Counter[PushId]
    gradient_of: GradientOf
    gradients: dict[PushId, tuple[np.ndarray, Ranges]] = field(default_factory=dict)

    def to_the_end(self, size: int) -> None:
        """Apply every row."""
        values = aligned(size, np.float32)  # aligned like a replica's copy: BLAS results may depend on the address
        for segment in self.segments:
            segment.keep()
        while any(segment.rows for segment in self.segments):
            applied = [self._advance(segment, values) for segment in self.segments]
            if not any(applied):
                raise RuntimeFailure(self._trouble())

    def _advance(self, segment: ReplayedSegment, values: np.ndarray) -> bool:
        """Apply a segment's rows as far as their gradients can be computed; returns whether any was applied."""
        began = segment.version
        while segment.rows:
            push = segment.rows[0].pusher, segment.rows[0].sequence
            if push not in self.gradients and not self._compute(push, values):
                break
            segment.apply(self.rule, *self.gradients[push])
            self.waiting[push] -= 1
            if not self.waiting[push]:
                del self.gradients[push]
        return segment.version > began

    def _compute(self, push: PushId, values: np.ndarray) -> bool:
        """Compute the gradient of a push, if the versions it was computed from exist."""
        row = self.recipes[push]
        if not take(self.segments, row.versions, values):
            return False
        gradient, absent = self.gradient_of(values, row)
        self.gradients[push] = np.array(gradient, np.float32), absent
        return True

    def _trouble(self) -> str:
        """The reason why no further row can be applied."""
        heads = [segment.rows[0] for segment in self.segments if segment.rows]
        later = ""
        for row in (self.recipes[head.pusher, head.sequence] for head in heads):
            for segment, version in zip(self.segments, row.versions, strict=True):
                logged = segment.version + len(segment.rows)
                what = f"{push_name(row)} was computed from version {version} of segment {segment.span.index}"
                if version > logged:
                    return f"{what}, and the shard's log ends at version {logged}"
                if version not in segment.kept:
                    later = later or f"{what}, which by the shards' logs came after it"
        return later
