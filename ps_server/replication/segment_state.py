"""One segment with all that it is, apart from any shard: what goes to another place. It knows no wire."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import Pusher
from dbelief.errors import Rejected, Unavailable

from ..store.accumulator import BundleAccumulator
from ..store.exchange_cache import Answer
from ..store.ledger import PushLedger
from ..store.segment import Segment, Staged

_LOOK_S = 0.001
_BUSY_S = 10.0
"""How long pushes without a lock may take to get out of a segment."""


@dataclass(kw_only=True)
class SegmentState:
    """A segment's state; see `Segment` for what the numbers mean.

    Attributes
    ----------
    state
        The rule's vectors, by name.
    told
        At the dial 0, in a shard that came back: by replica, how far it said that it is; None: it did not come back.
    answers
        Old centres whose askers may not have them, by pusher and number of the exchange.
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
    ledger: dict[tuple[str, Pusher], int] = field(default_factory=dict)
    based: dict[tuple[str, Pusher], tuple[int, int]] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] | None = None
    sum: BundleAccumulator = field(default_factory=BundleAccumulator)
    staged: dict[int, dict[Pusher, Staged]] = field(default_factory=dict)
    answers: dict[tuple[Pusher, int], Answer] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of all its numbers."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[np.ndarray]:
        """All of them."""
        yield from self.vectors.values()
        yield from self.state.values()
        yield from self.sum.waiting.values()
        yield from (one.gradient for waiting in self.staged.values() for one in waiting.values())
        yield from (numbers for _, numbers in self.answers.values())


def capture(
    segment: Segment, told: Mapping[int, int] | None, answers: Mapping[tuple[Pusher, int], Answer], copy: bool
) -> SegmentState:
    """What a segment is; its lock is held.

    Parameters
    ----------
    copy
        Whether the segment goes on: then its numbers are copied. Those that wait, and old centres, never change.
    """

    def numbers(array: np.ndarray) -> np.ndarray:
        return array.copy() if copy else array

    return SegmentState(
        span=segment.span,
        version=segment.version,
        born=segment.first_version,
        applied=segment.applied,
        rounds=segment.rounds,
        lost=segment.ledger.lost,
        vectors={name: numbers(array) for name, array in segment.vectors.items()},
        filled=dict(segment.filled),
        state={name: numbers(array) for name, array in zip(segment.rule.state, segment.state, strict=True)},
        ledger=dict(segment.ledger.last),
        based=dict(segment.ledger.bases),
        passed=dict(segment.passed),
        told=dict(told) if told is not None else None,
        sum=replace(segment.sum, added=set(segment.sum.added), waiting=dict(segment.sum.waiting)),
        staged={clock: dict(waiting) for clock, waiting in segment.staged.items()},
        answers=dict(answers),
    )


def install(carried: SegmentState, segment: Segment) -> None:
    """Make a segment what was carried here; its lock is held.

    Raises
    ------
    Refused
        It has another rule's state.
    """
    names = tuple(segment.rule.state)
    if set(carried.state) != set(names):
        raise Rejected(f"segment {carried.span.index} came with the state {sorted(carried.state)}, not {sorted(names)}")
    segment.version, segment.first_version, segment.applied = carried.version, carried.born, carried.applied
    segment.rounds = carried.rounds
    segment.vectors, segment.filled = carried.vectors, carried.filled
    segment.state = tuple(carried.state[name] for name in names)
    segment.ledger = PushLedger(carried.span.index, carried.ledger, carried.based, carried.lost)
    segment.passed = carried.passed
    segment.sum, segment.staged = carried.sum, carried.staged


def acquire_exclusive(segment: Segment) -> None:
    """Take the lock of a segment when no push without a lock is within it any more; whoever comes finds it away.

    Raises
    ------
    Unreachable
        They do not come out.
    """
    until_s = time.monotonic() + _BUSY_S
    while True:
        segment.lock.acquire()
        if not segment.busy:
            return
        segment.lock.release()
        if time.monotonic() > until_s:
            raise Unavailable(f"segment {segment.span.index}: pushes within it did not end for {_BUSY_S:g} s")
        time.sleep(_LOOK_S)
