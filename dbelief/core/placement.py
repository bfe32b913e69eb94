"""Where each segment lives, and what a replica does with it: the transport as replicas see it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dbelief.core.layout import Range, SegmentSpan
from dbelief.core.push import PARAMETERS, Push, PushResult

SegmentRange = tuple[int, int]
"""Index of a first segment, and how many there are from it on."""


@dataclass(frozen=True)
class ShardPlacement:
    """One shard and the segments that it holds, as runs that rise along the table and do not touch.

    `run_id` is of the run that it serves; 0: it has none.
    """

    shard: int
    address: str
    shard_epoch: int
    runs: tuple[SegmentRange, ...]
    run_id: int = 0

    @property
    def count(self) -> int:
        """How many segments it holds."""
        return sum(count for _, count in self.runs)

    @property
    def segments(self) -> Iterator[int]:
        """Their indices, rising."""
        return (index for first, count in self.runs for index in range(first, first + count))


def runs_of(indices: Iterable[int]) -> tuple[SegmentRange, ...]:
    """Rising indices of segments as runs."""
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
    """The segment table and who holds which run of it; `epoch` rises whenever segments change place."""

    epoch: int
    spans: tuple[SegmentSpan, ...]
    places: tuple[ShardPlacement, ...]

    @property
    def size(self) -> int:
        """How many parameters the job has."""
        return sum(span.length for span in self.spans)

    def run(self, place: ShardPlacement, part: Range | None = None) -> Sequence[SegmentSpan]:
        """The segments that one shard holds; of them those of one rank's part, where that is what is asked for."""
        held = [span for first, count in place.runs for span in self.spans[first : first + count]]
        if part is None:
            return held
        first, last = (bisect_left(held, number, key=lambda span: span.start) for number in part)
        return held[first:last]


class Parameters(Protocol):
    """The shards of a job as one vector. Implemented over gRPC and, for tests, in memory."""

    placement: Placement

    def array(self, size: int) -> np.ndarray:
        """(size,) float32, all 0, at a multiple of 64 bytes, which is quickly pulled into and pushed from."""

    def pull(self, out: np.ndarray, versions: np.ndarray, *, vector: str = PARAMETERS, clock: int = 0) -> float:
        """Read a named vector.

        Parameters
        ----------
        out
            (N,) float32, or as long as a rank's part; overwritten. Each segment is consistent; different segments may
            be of different versions.
        versions
            (segments,) int64: versions that `out` holds already, -1 for none; overwritten. Only newer segments
            are sent.
        clock
            With the staleness dial: the clock that is about to be computed.

        Returns
        -------
        float
            Seconds until the last shard let it be read; 0 without the dial.
        """

    def push(self, values: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        """Send (N,) float32 values computed from `versions`; returns when every segment acknowledged them."""
