"""One segment: the unit of locking, of versioning and of idempotence.

Held per segment: its part of every named vector, the rule's state, one version (rises with every push that the rule
applies, and over all lives of a shard), and the ledger: per vector and pusher the number of the last push that was
applied. A push is applied when its number is the ledger's plus one, answered as a duplicate when it is lower, refused
when it is higher.

Without a lock (Hogwild: Niu et al. 2011; You et al. 2017, section 3.2) the ledger and the version still have theirs,
but rule and copies run beside each other. Two pushes that write a number at the same moment may leave one of the two
steps only: a lost update. What is read, by pull, exchange or snapshot, has of a push that is under way some numbers and
lacks others; each number is one that was there. The ledger counts a push from when it begins, so that none is applied
twice; the version from when it is over, so that who holds a version holds all that was pushed up to it.

While a snapshot set is written, a segment that is not in it yet has a mark, and whatever is about to change an array
leaves a copy there: `mark.py`. Without a lock the mark is made and copies are left under it all the same: a set has of
pushes that were under way at its beginning some numbers, and none of those that began later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.arrays.streaming_copy import streaming_copy
from dbelief.checkpoint.shard_file import StoredSegment, state_key
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import ACCRUED, PARAMETERS, Push, Pusher
from dbelief.errors import Rejected
from dbelief.optim import Rule, apply_rule
from dbelief.optim.elastic import Elastic

from .accumulator import BundleAccumulator
from .copy_on_write import SnapshotView
from .journal import DropStagedRecord, ForgetRecord, JournalRecord, RoundRecord
from .ledger import PushLedger
from .limits import MOST_ROUNDS, MOST_VECTORS, check_limit
from .lock import TimedLock

VERSIONS_PER_INCARNATION = 1 << 40
"""Versions that are kept for each life of a shard: at 100,000 pushes per second, enough for four months."""


class Outcome(Enum):
    """What became of one segment of a push."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    STAGED = "staged"  # held for the round that the staleness dial asks for


@dataclass
class Staged:
    """A gradient that waits for its round; a copy, so that each member of an open round costs one more "w"."""

    gradient: np.ndarray
    samples: int
    rate: np.float32


class ReleasedLock:
    """Lets go of a segment's lock, which is held, for the length of a block; the segment counts who is within."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __enter__(self) -> None:
        """Let go."""
        self._segment.busy += 1
        self._segment.lock.release()

    def __exit__(self, *raised: object) -> None:
        """Hold it again."""
        self._segment.lock.acquire()
        self._segment.busy -= 1


@dataclass
class Segment:
    """State of one segment; every method expects `lock` to be held, unless it says otherwise.

    Attributes
    ----------
    vectors
        Per name this segment's part: 1-D, contiguous.
    state
        The rule's state, in the rule's order, float32 and as long as the segment.
    version
        One more with every push that the rule applies to "w": who holds this version holds what is here.
    born
        The version at which this life began; all that earlier lives may have shown is lower.
    applied
        Pushes that the rule has applied to "w", over all lives: Adam counts its steps by it.
    rounds
        With the dial at 0: rounds applied, which is the clock that the next round has. At N >= 1: clocks that anybody
        has passed.
    passed
        With the dial at N >= 1: per member, as a replica number, the clocks it has passed; it has pushed all below.
    filled
        Per vector, how many numbers from its first were assigned: one that is not whole yet is not to be read.
    taken
        Pushes, exchanges and bundles that came for it in this life, to any vector; those that came again too.
    ledger
        Duplicate detection, and pushes that were lost with earlier incarnations.
    sum
        The pass over a batch that "accrued" holds the sum of.
    lock_free
        Whether the rule is applied, and numbers are copied for an exchange, beside other pushes.
    busy
        How many are within it without its lock.
    journal
        Told of each deed that changes it, under its lock; None: nobody follows it, or has it yet.
    away
        Where it has gone, in words: nobody may touch it here any more; "" while it lives here.
    mark
        What a set that is being written is to hold of it; None where there is none, or it is written.
    """

    span: SegmentSpan
    rule: Rule
    lock: TimedLock = field(default_factory=TimedLock)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    state: tuple[np.ndarray, ...] = ()
    version: int = 0
    first_version: int = 0
    applied: int = 0
    rounds: int = 0
    passed: dict[int, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    sum: BundleAccumulator = field(default_factory=BundleAccumulator)
    ledger: PushLedger = field(init=False)
    lock_free: bool = False
    busy: int = 0
    moved_to: str = ""
    journal: Callable[[JournalRecord], None] | None = None
    staged: dict[int, dict[Pusher, Staged]] = field(default_factory=dict)
    mark: SnapshotView | None = None
    on_apply: Callable[[int, Pusher, int, float], None] | None = None

    def __post_init__(self) -> None:
        self.ledger = PushLedger(self.span.index)
        self._aside: AbstractContextManager[object] = ReleasedLock(self) if self.lock_free else nullcontext()

    def append_journal(self, deed: Callable[[], JournalRecord]) -> None:
        """Tell of a deed, which is made only where somebody follows."""
        if self.journal is not None:
            self.journal(deed())

    def holds(self, vector: str) -> bool:
        """Whether all of a named vector's numbers were assigned here."""
        return self.filled.get(vector, 0) == self.span.length

    def drop_staged(self, incarnations: Collection[int]) -> None:
        """Forget the gradients of these lives that wait for a round, in the ledger too."""
        lives = frozenset(incarnations)
        if any(pusher.incarnation in lives for round_ in self.staged.values() for pusher in round_):
            self.append_journal(lambda: DropStagedRecord(self.span.index, self.version, lives))
        for clock, round_ in list(self.staged.items()):
            for pusher in [pusher for pusher in round_ if pusher.incarnation in incarnations]:
                del round_[pusher]
                self.ledger.withdraw(pusher)
            if not round_:
                del self.staged[clock]

    def forget(self, incarnations: frozenset[int]) -> None:
        """Drop the rows of lives that are fenced for good."""
        self.append_journal(lambda: ForgetRecord(self.span.index, self.version, incarnations))
        self.ledger.forget(incarnations)

    def assign(self, push: Push, values: np.ndarray, offset: int) -> Outcome:
        """Overwrite a part of a named vector."""
        if not self.ledger.expect(push):
            return Outcome.DUPLICATE
        if push.vector not in self.vectors:
            check_limit("named vectors", push.vector, self.vectors, MOST_VECTORS)
            self.vectors[push.vector] = aligned(self.span.length, values.dtype)
        self.before_write(self.vectors[push.vector])
        streaming_copy(self.vectors[push.vector][offset : offset + len(values)], values)
        filled = self.filled.get(push.vector, 0)
        if offset <= filled:
            self.filled[push.vector] = max(filled, offset + len(values))
        self.ledger.record(push)
        return Outcome.APPLIED

    def apply(self, push: Push, gradient: np.ndarray, offset: int, rate: np.float32) -> Outcome:
        """Apply the rule to a part of "w" at a rate, exactly once for each number of a pusher."""
        if not self.ledger.expect(push):
            return Outcome.DUPLICATE
        self.ledger.record(push)
        part = slice(offset, offset + len(gradient))
        states = tuple(state[part] for state in self.state)
        self._step(self.vectors[PARAMETERS][part], gradient, states, rate)
        if self.on_apply is not None:
            self.on_apply(self.span.index, push.pusher, push.sequence, float(rate))
        return Outcome.APPLIED

    def present(self) -> tuple[int, np.ndarray]:
        """Version, and a copy of "w"; raises Refused where a program has rotated that away."""
        if PARAMETERS not in self.vectors:
            raise Rejected(f"segment {self.span.index}: has no vector {PARAMETERS!r} now")
        version = self.version
        with self._aside:
            return version, self.vectors[PARAMETERS].copy()

    def _step(self, w: np.ndarray, gradient: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32) -> None:
        self.before_write(self.vectors[PARAMETERS], *self.state)
        number = self.applied + 1
        with self._aside:
            apply_rule(self.rule, w, gradient, states, rate, number)
        self._count()

    def _count(self) -> None:
        self.applied += 1
        self.version += 1

    def stage(self, push: Push, gradient: np.ndarray) -> Outcome:
        """Hold a gradient until its round is complete."""
        if not self.ledger.expect(push):
            return Outcome.DUPLICATE
        if push.clock < self.rounds:
            raise Rejected(f"segment {self.span.index}: round {push.clock} is over, the next is {self.rounds}")
        check_limit("rounds that wait", push.clock, self.staged, MOST_ROUNDS)
        waiting = self.staged.setdefault(push.clock, {})
        if push.pusher in waiting:
            raise Rejected(
                f"segment {self.span.index}: replica {push.pusher.replica} has pushed round {push.clock} already"
            )
        # A private copy: the round outlives the message that the gradient came in.
        waiting[push.pusher] = Staged(gradient.copy(), push.samples, push.rate)
        self.ledger.record(push)
        return Outcome.STAGED

    def add(self, push: Push, gradient: np.ndarray, ordered: bool) -> Outcome:
        """Add a bundle's gradient to the sum of its pass, once."""
        assert push.bundle is not None
        if ACCRUED not in self.vectors:
            self.vectors[ACCRUED] = np.zeros(self.span.length, np.float64)
        self.before_write(self.vectors[ACCRUED])
        if not self.sum.add(self.vectors[ACCRUED], push.clock, push.bundle, gradient, ordered):
            return Outcome.DUPLICATE
        self.mark_written([ACCRUED])
        return Outcome.APPLIED

    def mark_written(self, vectors: Iterable[str]) -> None:
        """A program has given these vectors all their numbers."""
        for name in vectors:
            self.filled[name] = self.span.length
            self.version += 1

    def rotate(self, names: Sequence[str]) -> None:
        """The last name's vector becomes the first's, each other the next one's; names that hold nothing too."""
        tables: tuple[dict[str, Any], ...] = self.vectors, self.filled
        for held in tables:
            before = [held.pop(name, None) for name in names]
            for name, value in zip(names, [before[-1], *before[:-1]], strict=True):
                if value is not None:
                    held[name] = value
        self.version += 1

    def close_round(self, members: frozenset[int]) -> bool:
        """Apply the next round if every one of `members` (replica numbers) has pushed it.

        The round's gradient is the mean weighted by samples, summed in rising order of replica: for equal arrival
        sets the same bits, whatever order they arrived in. A round that nobody takes part in passes without a step.
        """
        arrived = self.staged.get(self.rounds, {})
        if not members <= {pusher.replica for pusher in arrived}:
            return False
        self.append_journal(lambda: RoundRecord(self.span.index, self.version))
        if arrived:
            self._step_together([arrived[pusher] for pusher in sorted(arrived)])
            del self.staged[self.rounds]
        self.rounds += 1
        return True

    def _step_together(self, arrived: Sequence[Staged]) -> None:
        w, rate = self.vectors[PARAMETERS], arrived[0].rate
        if isinstance(self.rule, Elastic):  # moves towards each: weights have no mean that would stand for them
            self.before_write(w)
            self.rule.together(np, w, [one.gradient for one in arrived], rate)
            self._count()
            return
        total = sum(one.samples for one in arrived)
        mean = np.zeros(self.span.length, np.float32)
        for one in arrived:
            mean += one.gradient * np.float32(one.samples / total)
        self._step(w, mean, self.state, rate)

    def applied_ledger(self) -> dict[tuple[str, Pusher], int]:
        """The ledger as the vectors show it: what is only staged does not count yet."""
        waiting = Counter(pusher for round_ in self.staged.values() for pusher in round_)
        return {
            (vector, pusher): last - (waiting[pusher] if vector == PARAMETERS else 0)
            for (vector, pusher), last in self.ledger.last.items()
        }

    # -- snapshot sets -----------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Be in the set that is begun as it is now: its vectors that are whole, and the rule's state.

        Raises
        ------
        Refused
            Where it has no initial values.
        """
        if not self.holds(PARAMETERS):
            raise Rejected(f"segment {self.span.index} has no initial values")
        arrays = {name: values for name, values in self.vectors.items() if self.holds(name)}
        arrays |= {state_key(name): values for name, values in zip(self.rule.state, self.state, strict=True)}
        ledger = {key: last for key, last in self.applied_ledger().items() if key[0] in arrays}
        self.mark = SnapshotView(
            StoredSegment(self.span, self.version, self.applied, self.rounds, self.ledger.lost, ledger, arrays)
        )

    def before_write(self, *arrays: np.ndarray) -> None:
        """Whoever writes to arrays of it says so before."""
        if self.mark is not None:
            self.mark.preserve(arrays)

    # -- coming back -------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Hold nothing that could be read, until it is loaded."""
        self.sum = BundleAccumulator()
        self.filled.clear()
        self.staged.clear()

    def load(self, stored: StoredSegment, shard_epoch: int, again: bool = False) -> None:
        """Be what a set holds, in the life `shard_epoch`: the versions of this life begin above all earlier ones'.

        `again`: the life goes on, so nobody is to repeat what he has had acknowledged in it.
        """
        self.before_write(*self.vectors.values(), *self.state)
        for name, target in zip(self.rule.state, self.state, strict=True):
            target[:] = stored.arrays[state_key(name)]
        vectors = stored.arrays.keys() - {state_key(name) for name in self.rule.state}
        self.vectors = {name: self.vectors.get(name, np.empty_like(stored.arrays[name])) for name in vectors}
        for name, target in self.vectors.items():
            target[:] = stored.arrays[name]
        self.filled = dict.fromkeys(self.vectors, self.span.length)
        self.version = self.first_version = max(
            stored.version, shard_epoch * VERSIONS_PER_INCARNATION, self.version + 1
        )
        self.applied, self.rounds = stored.applied, stored.rounds
        self.ledger.restore(stored.ledger, stored.lost, same_incarnation=again)
