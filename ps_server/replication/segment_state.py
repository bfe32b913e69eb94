"""Complete state of one segment, detached from any shard, for a transfer. Independent of the wire format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dbelief.core.absent import Missed
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import LedgerRow, Pusher
from dbelief.errors import Rejected, Unavailable
from dbelief.process.runtime import runtime

from ..store.accumulator import BundleAccumulator
from ..store.exchange_cache import Answer
from ..store.ledger import PushLedger
from ..store.segment import Segment, Staged

_LOOK_S = 0.001
_BUSY_S = 10.0
"""How long lock-free pushes may take to finish in a segment."""


@dataclass(kw_only=True)
class SegmentState:
    """State of one segment; see `Segment` for the meaning of the fields.

    Attributes
    ----------
    state
        The update rule's vectors, by name.
    reported
        With staleness bound 0, in a restored shard: by replica, the clocks that it reported as passed; None: the shard
        was not restored.
    answers
        Previous centre values that their requesters may not have yet, by pusher and number of the exchange.
    """

    span: SegmentSpan
    version: int
    born: int
    applied: int
    rounds: int
    lost: int
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)
    state: dict[str, np.ndarray] = field(default_factory=dict)
    ledger: dict[tuple[str, Pusher], LedgerRow] = field(default_factory=dict)
    based: dict[tuple[str, Pusher], tuple[int, int]] = field(default_factory=dict)
    lost_of: dict[Pusher, int] = field(default_factory=dict)
    missed: Missed = ()
    passed: dict[int, int] = field(default_factory=dict)
    reported: dict[int, int] | None = None
    sum: BundleAccumulator = field(default_factory=BundleAccumulator)
    staged: dict[int, dict[Pusher, Staged]] = field(default_factory=dict)
    answers: dict[tuple[Pusher, int], Answer] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[np.ndarray]:
        """All arrays of the state."""
        yield from self.vectors.values()
        yield from self.state.values()
        yield from self.sum.waiting.values()
        yield from (one.gradient for waiting in self.staged.values() for one in waiting.values())
        yield from (numbers for _, numbers in self.answers.values())


def capture(
    segment: Segment, reported: Mapping[int, int] | None, answers: Mapping[tuple[Pusher, int], Answer], copy: bool
) -> SegmentState:
    """State of a segment; the caller holds its lock.

    Parameters
    ----------
    copy
        Whether the segment stays in use: then its arrays are copied. Waiting gradients and previous centre values are
        never copied, since they never change.
    """

    def numbers(array: np.ndarray) -> np.ndarray:
        return array.copy() if copy else array

    vectors, state = segment.parts()
    return SegmentState(
        span=segment.span,
        version=segment.version,
        born=segment.first_version,
        applied=segment.applied,
        rounds=segment.rounds,
        lost=segment.ledger.lost,
        lost_of=dict(segment.ledger.lost_of),
        vectors={name: numbers(array) for name, array in vectors.items()},
        filled=dict(segment.filled),
        state={name: numbers(array) for name, array in state.items()},
        ledger=dict(segment.ledger.last),
        based=dict(segment.ledger.bases),
        missed=segment.missed,
        passed=dict(segment.passed),
        reported=dict(reported) if reported is not None else None,
        sum=replace(segment.sum, added=set(segment.sum.added), waiting=dict(segment.sum.waiting)),
        staged={clock: dict(waiting) for clock, waiting in segment.staged.items()},
        answers=dict(answers),
    )


def install(carried: SegmentState, segment: Segment) -> None:
    """Install a transferred state in a segment; the caller holds its lock.

    Raises
    ------
    Rejected
        It is the state of another update rule.
    """
    names = segment.parts()[1].keys()
    if carried.state.keys() != names:
        raise Rejected(f"segment {carried.span.index} has the state {sorted(carried.state)}, not {sorted(names)}")
    segment.version, segment.first_version, segment.applied = carried.version, carried.born, carried.applied
    segment.rounds, segment.missed = carried.rounds, carried.missed
    segment.set_parts(carried.vectors, carried.state)
    segment.filled = carried.filled
    segment.ledger = PushLedger(carried.span.index, carried.ledger, carried.based, carried.lost, carried.lost_of)
    segment.passed = carried.passed
    segment.sum, segment.staged = carried.sum, carried.staged


def acquire_exclusive(segment: Segment) -> None:
    """Acquire the lock of a segment once no lock-free push is executing in it; the caller then sets `moved_to`.

    Raises
    ------
    Unavailable
        The pushes did not finish within `_BUSY_S`.
    """
    until_s = runtime.monotonic() + _BUSY_S
    while True:
        segment.lock.acquire()
        if not segment.busy:
            return
        segment.lock.release()
        if runtime.monotonic() > until_s:
            raise Unavailable(f"segment {segment.span.index}: pushes within it did not end for {_BUSY_S:g} s")
        runtime.sleep(_LOOK_S)
