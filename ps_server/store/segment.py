"""One segment: the unit of locking, of versioning and of idempotence.

State per segment: its slice of every named vector, the rule's state, one version and the ledger. The version rises with
every push that the rule applies, and across all incarnations of a shard. The ledger holds, per vector and pusher, the
sequence number of the last push that was applied. A push is applied when its number is the ledger's plus one,
acknowledged as a duplicate when it is lower, and refused when it is higher.

In lock-free mode (Hogwild: Niu et al. 2011; You et al. 2017, section 3.2) the ledger and the version are still updated
under the lock, but rules and copies run concurrently. Two pushes that write a number at the same moment may leave only
one of the two steps: a lost update. A read (pull, exchange or snapshot) may see a push in progress partially; each
number is one that was stored. The ledger counts a push from its start, so that none is applied twice. The version
counts it from its end, so that a reader with a version has everything that was pushed up to it.

While a snapshot set is written, a segment that is not in it yet has a snapshot view, and every write to an array first
preserves a copy there: `copy_on_write.py`. The lock-free mode creates the view and preserves copies as well: of pushes
in progress when the set begins, the set holds some numbers, and none of those that began later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.arrays.streaming_copy import streaming_copy
from dbelief.checkpoint.shard_file import StoredSegment, state_key
from dbelief.core.absent import EVERYTHING, Missed, Ranges, covers, in_segment, pairs
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import ACCRUED, NO_PUSH, PARAMETERS, AppliedPush, LedgerRow, Push, Pusher
from dbelief.errors import Rejected
from dbelief.optim import Rule, apply_present, apply_rule, missed_after
from dbelief.optim.round_mean import round_mean
from dbelief.optim.rules.elastic import ElasticMove

from .accumulator import BundleAccumulator
from .admission import MOST_ROUNDS, MOST_VECTORS, check_limit
from .concurrency import TimedLock
from .copy_on_write import SnapshotView
from .journal import DropStagedRecord, ForgetRecord, JournalRecord, RoundRecord
from .ledger import PushLedger
from .packed import Into, check_packed, numbers_at

VERSIONS_PER_INCARNATION = 1 << 40
"""Versions reserved for each incarnation of a shard: enough for four months at 100,000 pushes per second."""


class Outcome(Enum):
    """Outcome of one segment of a push."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    STAGED = "staged"  # buffered until its round is complete (staleness bound 0)


@dataclass
class Staged:
    """Gradient buffered until its round is complete; a copy: each member of an open round costs one more "w".

    `before`: its pusher's ledger row as it was before this push. `absent`: ranges of the segment that took no part,
    where it is 0. `samples`: its weight in the mean; 0 where nothing of the whole push took part.
    """

    gradient: np.ndarray
    samples: int
    rate: np.float32
    before: LedgerRow = NO_PUSH
    absent: Ranges = ()


class ReleasedLock:
    """Context manager that releases a segment's held lock for a block; `Segment.busy` counts the threads inside."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __enter__(self) -> None:
        """Release the lock."""
        self._segment.busy += 1
        self._segment.lock.release()

    def __exit__(self, *raised: object) -> None:
        """Acquire the lock again."""
        self._segment.lock.acquire()
        self._segment.busy -= 1


@dataclass
class Segment:
    """State of one segment; every method expects `lock` to be held, unless it says otherwise.

    Attributes
    ----------
    vectors
        This segment's slice of each named vector: 1-D, contiguous.
    state
        The rule's state, in the rule's order, float32 and as long as the segment.
    version
        Rises by one with every push that the rule applies to "w", and with every vector that a program or bundle
        writes: a reader with this version has the current contents.
    first_version
        Version at which this incarnation began; every version visible in earlier incarnations is lower.
    applied
        Pushes that the rule has applied to "w", over all incarnations: Adam counts its steps by it. One in which none
        of its numbers took part is not counted.
    missed
        By range of its numbers, how many of these pushes they took no part in; kept for Adam.
    rounds
        With staleness bound 0: rounds applied, the next round's clock. With N >= 1: clocks that any replica has passed.
    passed
        With staleness bound N >= 1: clocks passed per member (replica number); it has pushed all lower clocks.
    filled
        Per vector, the count of numbers assigned from its first: an incomplete one must not be read.
    taken
        Pushes, exchanges and bundles received in this incarnation, for any vector, duplicates included.
    ledger
        Duplicate detection, and pushes that were lost with earlier incarnations.
    sum
        Accumulator of the pass whose gradient sum "accrued" holds.
    lock_free
        Whether rules, and copies for an exchange, run concurrently with other pushes.
    stale
        With a quorum: factor of a push's weight for each round that it is late; None: there is no quorum.
    busy
        Number of threads that work on the segment without its lock.
    journal
        Called with each journal record that changes the segment, under its lock; None: no follower has a copy of it.
    moved_to
        Where the segment has migrated, as text; no call may use it here any more. "" while it is served here.
    snapshot_view
        Snapshot view for a set that is being written; None where there is none, or the segment is written.
    on_apply
        Called under the lock for every push that is applied, of a round in the order of its sum.
    """

    span: SegmentSpan
    rule: Rule
    lock: TimedLock = field(default_factory=TimedLock)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    state: tuple[np.ndarray, ...] = ()
    version: int = 0
    first_version: int = 0
    applied: int = 0
    missed: Missed = ()
    rounds: int = 0
    passed: dict[int, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    sum: BundleAccumulator = field(default_factory=BundleAccumulator)
    ledger: PushLedger = field(init=False)
    lock_free: bool = False
    stale: float | None = None
    busy: int = 0
    moved_to: str = ""
    journal: Callable[[JournalRecord], None] | None = None
    staged: dict[int, dict[Pusher, Staged]] = field(default_factory=dict)
    snapshot_view: SnapshotView | None = None
    on_apply: Callable[[AppliedPush], None] | None = None

    def __post_init__(self) -> None:
        self.ledger = PushLedger(self.span.index)
        self._aside: AbstractContextManager[object] = ReleasedLock(self) if self.lock_free else nullcontext()

    def append_journal(self, make_record: Callable[[], JournalRecord]) -> None:
        """Append a journal record; `make_record` builds it, and is called only where a follower is attached."""
        if self.journal is not None:
            self.journal(make_record())

    @property
    def nbytes(self) -> int:
        """Bytes of its parameters."""
        return 4 * self.span.length

    def holds(self, vector: str) -> bool:
        """Whether all of a named vector's numbers were assigned here."""
        return self.filled.get(vector, 0) == self.span.length

    def check(self, values: np.ndarray, offset: int, packed: bool = False) -> None:
        """Check what a push brings, before any of it is used.

        Raises
        ------
        Rejected
            It does not fit the segment.
        """
        if packed:
            check_packed(self.span, values)
        elif offset + len(values) > self.span.length or not len(values):
            length = self.span.length
            raise Rejected(f"segment {self.span.index}: {len(values)} numbers at {offset} do not fit its {length}")

    def read(self, positions: np.ndarray, vector: str, into: Into | None = None) -> np.ndarray:
        """(n,) numbers of a named vector at (n,) int64 positions; raises Rejected where it has none there."""
        if not self.holds(vector):
            raise Rejected(f"segment {self.span.index}: no vector {vector!r} yet")
        return numbers_at(self.span, self.vectors[vector], positions, into)

    def received(self, push: Push) -> Push:
        """A push from a replica as it is here, and in the journal."""
        return push

    def rate_of(self, push: Push) -> np.float32:
        """Learning rate of a push from a replica here."""
        return push.rate

    def absent(self, push: Push, values: np.ndarray) -> Ranges:
        """Ranges of the segment that took no part in a push of these values."""
        return in_segment(push.absent, self.span) if push.absent else ()

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """All vectors, complete or not, and the rule's state by name, in place."""
        return self.vectors, dict(zip(self.rule.state, self.state, strict=True))

    def set_parts(self, vectors: dict[str, np.ndarray], state: Mapping[str, np.ndarray]) -> None:
        """Hold these arrays, as `parts` gave them for a segment of the same rule."""
        self.vectors, self.state = vectors, tuple(state[name] for name in self.rule.state)

    def drop_staged(self, incarnations: Collection[int]) -> None:
        """Drop the staged gradients of these incarnations, and their ledger entries.

        One that came after the end of its round is acknowledged: it stays.
        """
        ended = frozenset(incarnations)
        waiting = {clock: round_ for clock, round_ in self.staged.items() if clock >= self.rounds}
        if any(pusher.incarnation in ended for round_ in waiting.values() for pusher in round_):
            self.append_journal(lambda: DropStagedRecord(self.span.index, self.version, ended))
        for pusher, before in _rows_before(waiting.values()).items():
            if pusher.incarnation in ended:
                self.ledger.withdraw(pusher, before)
        for clock, round_ in waiting.items():
            for pusher in [pusher for pusher in round_ if pusher.incarnation in ended]:
                del round_[pusher]
            if not round_:
                del self.staged[clock]

    def forget(self, incarnations: frozenset[int]) -> None:
        """Drop the ledger rows of incarnations that are fenced permanently."""
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

    def apply(
        self, push: Push, gradient: np.ndarray, offset: int, rate: np.float32, before: np.ndarray | None = None
    ) -> Outcome:
        """Apply the rule to a part of "w" at a rate, exactly once for each number of a pusher; not to absent ones.

        `before`: array that receives this part of "w" as it is before the step.
        """
        if not self.ledger.expect(push):
            return Outcome.DUPLICATE
        self.ledger.record(push)
        self._step(gradient, rate, offset, before, self.absent(push, gradient))
        if self.on_apply is not None:
            self.on_apply(AppliedPush(self.span.index, push.pusher, push.sequence, float(rate)))
        return Outcome.APPLIED

    def exchange(self, push: Push, weights: np.ndarray, before: np.ndarray, rounds: bool) -> None:
        """Apply the rule with a worker's own weights to "w", or hold them until their round is complete (`rounds`).

        `before`: (length,) array that receives "w" as it is before.
        """
        if not rounds:
            self.apply(push, weights, 0, push.rate, before)
        elif self.stage(push, weights) is Outcome.STAGED:
            streaming_copy(before, self.vectors[PARAMETERS])

    def _step(
        self,
        gradient: np.ndarray,
        rate: np.float32,
        offset: int = 0,
        before: np.ndarray | None = None,
        absent: Ranges = (),
    ) -> None:
        if absent and covers(absent, self.span.length):
            self.version += 1
            return
        w = self.vectors[PARAMETERS]
        self.before_write(w, *self.state)
        made, missed = self.applied, self.missed
        with self._aside:
            if absent or missed:
                apply_present(self.rule, w, gradient, self.state, rate, made, absent, missed, offset)
            else:
                part = slice(offset, offset + len(gradient))
                states = tuple(state[part] for state in self.state)
                apply_rule(self.rule, w[part], gradient, states, rate, made + 1, before)
        if absent:  # by what is missed now: another lock-free push may have changed it
            self.missed = missed_after(self.rule, self.missed, absent)
        self._count()

    def _count(self) -> None:
        self.applied += 1
        self.version += 1

    def stage(self, push: Push, gradient: np.ndarray) -> Outcome:
        """Hold a gradient until its round is complete; with a quorum, one whose round is over until the next one is."""
        if not self.ledger.expect(push):
            return Outcome.DUPLICATE
        if push.clock < self.rounds and self.stale is None:
            raise Rejected(f"segment {self.span.index}: round {push.clock} is over, the next is {self.rounds}")
        if push.clock not in self.staged:
            self._open_round(push.clock)
        waiting = self.staged[push.clock]
        if push.pusher in waiting:
            raise Rejected(
                f"segment {self.span.index}: replica {push.pusher.replica} has pushed round {push.clock} already"
            )
        # A private copy: the round outlasts the message that holds the gradient.
        staged = Staged(gradient.copy(), push.samples, push.rate, self.ledger.row(push.pusher))
        if push.absent:
            self._stage_absent(push, staged)
        waiting[push.pusher] = staged
        self.ledger.record(push)
        return Outcome.STAGED

    def _open_round(self, clock: int) -> None:
        if clock >= self.rounds:  # of earlier ones each pusher has one at most
            waiting_rounds = [one for one in self.staged if one >= self.rounds]
            check_limit("rounds that wait", clock, waiting_rounds, MOST_ROUNDS)
        self.staged[clock] = {}

    def _stage_absent(self, push: Push, staged: Staged) -> None:
        staged.absent = self.absent(push, staged.gradient)
        for start, stop in pairs(staged.absent):
            staged.gradient[start:stop] = 0
        if staged.absent and push.absent == EVERYTHING:
            staged.samples = 0

    def add(self, push: Push, gradient: np.ndarray, ordered: bool) -> Outcome:
        """Add a bundle's gradient to the sum of its pass, once."""
        assert push.bundle is not None
        if ACCRUED not in self.vectors:
            self.vectors[ACCRUED] = np.zeros(self.span.length, np.float64)
        self.before_write(self.vectors[ACCRUED])
        if not self.sum.add(self.vectors[ACCRUED], push.clock, push.bundle, gradient, ordered, push.packed):
            return Outcome.DUPLICATE
        self.mark_written([ACCRUED])
        return Outcome.APPLIED

    def mark_written(self, vectors: Iterable[str]) -> None:
        """Record that a program has written all numbers of these vectors."""
        for name in vectors:
            self.filled[name] = self.span.length
            self.version += 1

    def arrived(self) -> frozenset[int]:
        """Replica numbers of those that have pushed the next round."""
        return frozenset([pusher.replica for pusher in self.staged.get(self.rounds, ())])

    @property
    def has_late(self) -> bool:
        """Whether a push waits whose own round is over."""
        return any(clock < self.rounds for clock in self.staged)

    def close_round(self) -> None:
        """Apply the next round, with what is staged for it and for earlier ones.

        The round's gradient is the mean weighted by samples, summed in rising order of clock and replica; with a
        quorum, a push's weight is multiplied by `stale` for each round that it is late. Equal sets of pushes thus give
        the same bits in any order of arrival. Numbers are absent that took part in none of the pushes, and 0 in the
        others' mean that took part in some. A round without pushes passes without a step.
        """
        self.append_journal(lambda: RoundRecord(self.span.index, self.version))
        due = sorted(clock for clock in self.staged if clock <= self.rounds)
        arrived = [(who, self.rounds - clock, one) for clock in due for who, one in sorted(self.staged[clock].items())]
        if arrived:
            self._step_together(arrived)
        for clock in due:
            del self.staged[clock]
        self.rounds += 1

    def _step_together(self, arrived: Sequence[tuple[Pusher, int, Staged]]) -> None:
        """Apply the rule to gradients, each with its pusher and its age in rounds."""
        weights = [one.samples * _decayed(self.stale, age) if age else one.samples for _, age, one in arrived]
        rate = arrived[0][2].rate
        if isinstance(self.rule, ElasticMove):  # moves towards each replica's weights: a mean cannot replace them
            w = self.vectors[PARAMETERS]
            self.before_write(w)
            self.rule.together(np, w, [one.gradient for _, _, one in arrived], rate)
            self._count()
            return
        pushed = [(one.gradient, weight, one.absent) for weight, (_, _, one) in zip(weights, arrived, strict=True)]
        mean, absent = self._mean(pushed)
        self._step(mean, rate, absent=absent)
        if self.on_apply is not None:
            for weight, (pusher, _, one) in zip(weights, arrived, strict=True):
                row = AppliedPush(self.span.index, pusher, one.before.sequence + 1, float(rate))
                self.on_apply(row._replace(round=self.rounds, weight=weight))

    def _mean(self, pushed: Sequence[tuple[np.ndarray, float, Ranges]]) -> tuple[np.ndarray, Ranges]:
        """See `round_mean`."""
        return round_mean(self.span.length, pushed)

    def applied_ledger(self) -> dict[tuple[str, Pusher], LedgerRow]:
        """Ledger that matches the vectors: staged pushes are not counted."""
        before = {(PARAMETERS, pusher): row for pusher, row in _rows_before(self.staged.values()).items()}
        return self.ledger.last | before

    # -- snapshot sets -----------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Create the snapshot view: the segment's complete vectors and the rule's state, as they are now.

        Raises
        ------
        Rejected
            Where it has no initial values.
        """
        if not self.holds(PARAMETERS):
            raise Rejected(f"segment {self.span.index} has no initial values")
        vectors, state = self.parts()
        arrays = {name: values for name, values in vectors.items() if self.holds(name)}
        arrays |= {state_key(name): values for name, values in state.items()}
        ledger = {key: last for key, last in self.applied_ledger().items() if self.holds(key[0])}
        self.snapshot_view = SnapshotView(
            StoredSegment(
                self.span,
                self.version,
                self.applied,
                self.rounds,
                self.ledger.lost,
                ledger,
                arrays,
                dict(self.ledger.lost_of),
                self.missed,
            )
        )

    def before_write(self, *arrays: np.ndarray) -> None:
        """Preserve these arrays for the snapshot view; called before every write to them."""
        if self.snapshot_view is not None:
            self.snapshot_view.preserve(arrays)

    # -- recovery ----------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Drop all readable contents until the segment is loaded."""
        self.sum = BundleAccumulator()
        self.filled.clear()
        self.staged.clear()

    def load(self, stored: StoredSegment, shard_epoch: int, again: bool = False) -> None:
        """Load the contents from a set, in incarnation `shard_epoch`; its versions begin above all earlier ones.

        `again`: the incarnation continues, so the ledger keeps what was acknowledged in it, and no pusher repeats that.
        """
        self._load_arrays(stored.arrays)
        self.version = self.first_version = max(
            stored.version, shard_epoch * VERSIONS_PER_INCARNATION, self.version + 1
        )
        self.applied, self.missed, self.rounds = stored.applied, stored.missed, stored.rounds
        self.ledger.restore(stored.ledger, stored.lost, stored.lost_of, same_incarnation=again)

    def _load_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy vectors and the rule's state, as a set has them."""
        self.before_write(*self.vectors.values(), *self.state)
        for name, target in zip(self.rule.state, self.state, strict=True):
            target[:] = arrays[state_key(name)]
        vectors = arrays.keys() - {state_key(name) for name in self.rule.state}
        self.vectors = {name: self.vectors.get(name, np.empty_like(arrays[name])) for name in vectors}
        for name, target in self.vectors.items():
            target[:] = arrays[name]
        self.filled = dict.fromkeys(self.vectors, self.span.length)


def _decayed(stale: float | None, age: int) -> float:
    """Factor of a weight by age, in rounds: products, whose bits are the same on every processor."""
    return math.prod([1.0 if stale is None else stale] * age)


def _rows_before(rounds: Iterable[Mapping[Pusher, Staged]]) -> dict[Pusher, LedgerRow]:
    """By pusher with staged gradients: its ledger row before the first of them."""
    rows: dict[Pusher, LedgerRow] = {}
    for round_ in rounds:
        for pusher, one in round_.items():
            rows[pusher] = min(one.before, rows.get(pusher, one.before))
    return rows
