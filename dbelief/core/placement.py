"""Placement of segments on shards, and the interface of a replica to the shards."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dbelief.core.layout import Kind, Range, SegmentSpan
from dbelief.core.push import PARAMETERS, Push, PushResult

SegmentRange = tuple[int, int]
"""Index of a first segment, and the number of consecutive segments."""


@dataclass(frozen=True)
class ShardPlacement:
    """One shard and its segments, as runs that ascend in the table and are not adjacent.

    `run_id` is that of the job run that it serves; 0: it has none.
    """

    shard: int
    address: str
    shard_epoch: int
    runs: tuple[SegmentRange, ...]
    run_id: int = 0

    @property
    def count(self) -> int:
        """Number of its segments."""
        return sum(count for _, count in self.runs)

    @property
    def segments(self) -> Iterator[int]:
        """Indices of its segments, ascending."""
        return (index for first, count in self.runs for index in range(first, first + count))


def runs_of(indices: Iterable[int]) -> tuple[SegmentRange, ...]:
    """Group ascending indices of segments into runs."""
    runs: list[SegmentRange] = []
    for index in indices:
        first, count = runs[-1] if runs else (index, 0)
        if index == first + count:
            runs[-1:] = [(first, count + 1)]
        else:
            runs.append((index, 1))
    return tuple(runs)


@dataclass(frozen=True)
class Placement:
    """The segment table and the runs of each shard; `epoch` increases whenever segments move."""

    epoch: int
    spans: tuple[SegmentSpan, ...]
    places: tuple[ShardPlacement, ...]

    @property
    def size(self) -> int:
        """Number of parameters of the job."""
        return sum(span.length for span in self.spans)

    @property
    def dense(self) -> int:
        """Number of its segments that are no buckets of tables: they come first."""
        return sum(span.kind is not Kind.TABLE for span in self.spans)

    def run(
        self, place: ShardPlacement, part: Range | None = None, within: frozenset[int] | None = None
    ) -> Sequence[SegmentSpan]:
        """Segments of one shard; with `part` only those of that rank's range, or with `within` only these."""
        held = [span for first, count in place.runs for span in self.spans[first : first + count]]
        if within is not None:
            return [span for span in held if span.index in within]
        while held and held[-1].kind is Kind.TABLE:  # behind all others
            held.pop()
        if part is None:
            return held
        first, last = (bisect_left(held, number, key=lambda span: span.start) for number in part)
        return held[first:last]

    def buckets(self, place: ShardPlacement) -> Sequence[SegmentSpan]:
        """Buckets of tables of one shard; `run` has none of them, except by `within`."""
        return [self.spans[index] for index in place.segments if self.spans[index].kind is Kind.TABLE]

    def split(
        self, part: Range | None = None, within: frozenset[int] | None = None
    ) -> list[tuple[ShardPlacement, Sequence[SegmentSpan]]]:
        """The shards that hold some of these segments, each with those; see `run`."""
        runs = ((place, self.run(place, part, within)) for place in self.places)
        return [(place, run) for place, run in runs if run]


@dataclass(frozen=True)
class Fetch:
    """Arguments of a pull of "w", as `Parameters.pull` has them, that follows a push."""

    out: np.ndarray
    versions: np.ndarray
    clock: int = 0


class Parameters(Protocol):
    """The shards of a job as one vector. Implemented over gRPC and, for tests, in memory."""

    placement: Placement

    def array(self, size: int) -> np.ndarray:
        """(size,) float32, all 0, aligned to 64 bytes, for fast pulls and pushes."""

    def pull(self, out: np.ndarray, versions: np.ndarray, *, vector: str = PARAMETERS, clock: int = 0) -> float:
        """Read a named vector.

        Parameters
        ----------
        out
            (N,) float32, or of the length of a rank's range; overwritten. Each segment is consistent; different
            segments may have different versions.
        versions
            (segments,) int64: versions that `out` holds already, -1 for none; overwritten. Only newer segments are
            sent.
        clock
            With a staleness bound: the clock that is computed next.

        Returns
        -------
        float
            Seconds until the last shard permitted the read; 0 without a staleness bound.
        """

    def push(
        self,
        values: np.ndarray,
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None = None,
        *,
        within: frozenset[int] | None = None,
    ) -> PushResult:
        """Send (N,) float32 values computed from `versions`; returns when every segment acknowledged them.

        Parameters
        ----------
        fetch
            "w" to be read then, each segment with this push; in the same messages, where that is possible.
        within
            Indices of the segments that are sent and fetched; None: all.
        """


def report_clock(parameters: Parameters, clock: int) -> None:
    """Report to all shards that this replica pushes no round before `clock` any more; nothing is read."""
    unused = np.empty(parameters.placement.size, np.float32)  # memory that is never touched
    parameters.pull(unused, np.full(len(parameters.placement.spans), np.iinfo(np.int64).max), clock=clock)
