"""A shard: a store of named vectors, divided into segments, and the operations on them. Independent of the wire format.

Locks: one per segment, held for one copy or one rule. A push and a pull of the same segment exclude each other, so no
reader sees half an update. Pushes to different segments run concurrently, because the rules release the interpreter
lock. A lock-free shard (Hogwild) releases a segment's lock while it copies or applies the rule: see `segment.py`. The
table of segments is never changed in place: a migration (`replication/migration.py`) replaces it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.checkpoint.shard_file import StoredSegment
from dbelief.core.layout import Kind, SegmentSpan
from dbelief.core.push import NO_PUSH, PARAMETERS, AppliedPush, LedgerRow, Push, Pusher
from dbelief.errors import Moved, Rejected
from dbelief.optim import Rule
from dbelief.optim.rules.add import ADD
from dbelief.optim.rules.elastic import ElasticMove
from dbelief.process.runtime import runtime
from dbelief.sparse.table import SparseTable

from .admission import PushAdmission
from .bucket import new_bucket
from .exchange_cache import Answer, ExchangeReplyCache
from .journal import PushRecord
from .packed import Into
from .pulled_numbers import PulledNumbers
from .quorum import Quorum
from .segment import Outcome, Segment
from .staleness import StalenessBarrier

T = TypeVar("T")


@dataclass
class Counters:
    """Counts of a shard's operations, in segments."""

    pushes: int = 0
    pulls: int = 0
    duplicates: int = 0


class SegmentResult(NamedTuple):
    """Result of one segment of a push.

    `staleness` in versions, with a quorum in rounds; `lost`: earlier pushes of this pusher that were lost with the
    shard's former incarnation.
    """

    outcome: Outcome
    staleness: int
    lost: int


def _copy(version: int, values: np.ndarray | None) -> tuple[int, bytes | None]:
    return version, None if values is None else values.tobytes()


def _new_array(span: SegmentSpan) -> np.ndarray:
    return np.empty(span.length, np.float32)


class Shard:
    """The segments of one shard and the operations on them.

    Parameters
    ----------
    spans
        Rows of the job's segment table that this shard owns; may be empty.
    rule
        The job's update rule; its state is stored beside "w".
    staleness
        Bound in clocks: 0 buffers each round until all members have pushed it, N lets no replica lead another by more
        than N + 1 clocks, None sets no bound.
    on_apply
        See `Segment`.
    staleness_aware
        Without a staleness bound: a push's rate is divided by its staleness in each segment, where that is above 1
        (Zhang et al. 2016).
    ordered
        Whether bundles of a pass are added by rising number.
    lock_free
        Without a staleness bound: pushes and exchanges of a segment run concurrently (see `Segment`).
    quorum
        With bound 0: when a round may end without some of its members; None: never.
    differences
        Whether fetched numbers are kept, for later answers: see `pulled_numbers.py`. Not where it is lock-free.
    tables
        Tables of the job, each with its rule. Not where it is lock-free.
    """

    def __init__(
        self,
        spans: Sequence[SegmentSpan],
        rule: Rule,
        staleness: int | None = None,
        on_apply: Callable[[AppliedPush], None] | None = None,
        staleness_aware: bool = False,
        ordered: bool = False,
        lock_free: bool = False,
        quorum: Quorum | None = None,
        differences: bool = False,
        tables: Mapping[SparseTable, Rule] | None = None,
    ) -> None:
        self.rule = rule
        self.tables = tables or {}
        self.staleness_aware = staleness_aware
        self.lock_free = lock_free
        self.ordered = ordered
        self.staleness = staleness
        self._loading = False  # a set is being loaded over the former contents
        self.counters = Counters()
        self.saving = runtime.lock()  # one set is written at a time
        self.quorum = quorum
        stale = quorum.stale if quorum is not None else None
        self._make = functools.partial(Segment, rule=rule, lock_free=lock_free, on_apply=on_apply, stale=stale)
        self.segments = {span.index: self.make(span) for span in spans}
        self.elsewhere: set[int] = set()  # migrated from here, or received and not served yet
        self.barrier = StalenessBarrier(staleness, self.segments, quorum)
        self._admission = PushAdmission(staleness)
        self.answers = ExchangeReplyCache()
        self._pulled = PulledNumbers() if differences and not lock_free else None

    def make(self, span: SegmentSpan) -> Segment:
        """New segment, before any assignment."""
        if span.kind is Kind.TABLE:
            return new_bucket(span, self.tables, **self._make.keywords)
        segment = self._make(span) if span.kind is Kind.TRAINED else self._make(span, rule=ADD)
        segment.vectors[PARAMETERS] = aligned(span.length, np.float32)
        segment.state = tuple(aligned(span.length, np.float32) for _ in segment.rule.state)
        for state, value in zip(segment.state, segment.rule.state.values(), strict=True):
            state.fill(value)
        return segment

    @property
    def ready(self) -> bool:
        """Whether initial values are complete, and pushes by the rule are accepted."""
        return self._admission.ready

    @property
    def size(self) -> int:
        """Number of parameters in this shard."""
        return sum(segment.span.length for segment in self.segments.values())

    def segment(self, index: int) -> Segment:
        """A segment of this shard; raises Moved where another shard owns it now, Rejected where it was never here."""
        try:
            return self.segments[index]
        except KeyError:
            if index in self.elsewhere:
                raise Moved(f"segment {index}: is at another shard now") from None
            raise Rejected(f"segment {index} is not on this shard") from None

    def set_segments(self, segments: Mapping[int, Segment], reported: Mapping[int, Mapping[int, int] | None]) -> None:
        """Set the segments to serve; `reported`: clocks that the former owners of migrated ones had received."""
        self.elsewhere = (self.elsewhere | self.segments.keys()) - segments.keys()
        self.segments = dict(sorted(segments.items()))
        if self._pulled is not None:
            self._pulled.retain(self.segments.keys())
        self.barrier.set_segments(self.segments, reported)

    # -- commands of the coordinator ---------------------------------------------------------------------

    def make_ready(self) -> None:
        """Accept pushes by the rule from now on.

        Raises
        ------
        Rejected
            Where initial values are missing; names the first segment without.
        """
        self.check_complete()
        self._admission.ready, self._loading = True, False

    def check_complete(self) -> None:
        """Raise Rejected where initial values are missing; names the first segment without."""
        missing = sorted(index for index, segment in self.segments.items() if not segment.holds(PARAMETERS))
        if missing:
            raise Rejected(
                f"segment {missing[0]} has no initial values ({len(missing)} of {len(self.segments)} miss them)"
            )

    def fence(self, incarnations: Iterable[int]) -> None:
        """Refuse these incarnations from now on; when this returns, their ledgers are final."""
        self._admission.fence(incarnations)
        for segment in self.segments.values():
            with segment.lock:
                # Every push that was admitted before has finished by now. A staged gradient is dropped, and its data
                # is assigned again: a snapshot would not hold it.
                segment.drop_staged(self._admission.fenced)
        self.barrier.close_rounds(self.segments)

    def forget(self, incarnations: Iterable[int]) -> None:
        """Drop the ledger rows of incarnations that are fenced permanently."""
        ended = frozenset(incarnations)
        self.answers.forget(ended)
        self._admission.forget(ended)
        for segment in self.segments.values():
            with segment.lock:
                segment.forget(ended)

    def append_empty_record(self) -> None:
        """Append a journal record that changes nothing, for a segment that the follower has."""
        for segment in self.segments.values():
            with segment.lock:
                if segment.journal is not None:
                    segment.forget(frozenset())
                    return

    def set_membership(self, member_epoch: int, rounds: Sequence[tuple[int, Iterable[int]]]) -> int:
        """See `StalenessBarrier.set_membership`."""
        return self.barrier.set_membership(member_epoch, rounds)

    @property
    def pulled(self) -> PulledNumbers | None:
        """Fetched numbers, where answers may be differences from them; None until initial values are complete."""
        return self._pulled if self.ready else None

    # -- reading -----------------------------------------------------------------------------------------

    def pull(self, vector: str, index: int, newer_than: int | None = None) -> tuple[int, bytes | None]:
        """Version and bytes of one segment of a named vector; bytes None where it is not newer than `newer_than`."""
        return self.read(vector, index, newer_than, _copy)

    def read(self, vector: str, index: int, newer_than: int | None, form: Callable[[int, np.ndarray | None], T]) -> T:
        """Call `form` with one segment of a named vector and return its result; `form` must copy what it keeps.

        `form` gets version and numbers under the segment's lock; numbers None if not newer than `newer_than`.

        Raises
        ------
        Rejected
            Where the segment is not in this shard, or its vector is missing or incomplete.
        """
        segment = self.segment(index)
        with segment.lock:
            self._check_here(segment)
            if not segment.holds(vector):
                raise Rejected(f"segment {index}: no vector {vector!r} yet")
            if segment.span.by_key:
                raise Rejected(f"segment {index} is a bucket of a table, whose rows are read by key")
            held = newer_than is not None and segment.version <= newer_than
            formed = form(segment.version, None if held else segment.vectors[vector])
        self.counters.pulls += 1
        return formed

    def read_rows(
        self, index: int, keys: np.ndarray, vector: str = PARAMETERS, into: Into | None = None
    ) -> tuple[int, np.ndarray]:
        """Version of a bucket, and the (n, width) float32 rows of (n,) int64 keys; see `Segment.read`."""
        segment = self.segment(index)
        with segment.lock:
            self._check_here(segment)
            self.counters.pulls += 1
            return segment.version, segment.read(keys, vector, into)

    def wait_for_clock(self, indices: Iterable[int], clock: int, timeout_s: float) -> None:
        """Wait until these segments may be read for `clock`; see `StalenessBarrier.wait`. Without a bound: no wait."""
        self.barrier.wait([self.segment(index) for index in indices], clock, timeout_s)

    @property
    def pulls_wait(self) -> bool:
        """Whether a replica's pull waits for a clock: see `StalenessBarrier`."""
        return self.staleness is not None and self.quorum is None

    def open_round(self, indices: Iterable[int]) -> int:
        """With a quorum: the latest of these segments' open rounds; else 0."""
        return 0 if self.quorum is None else max(self.segment(index).rounds for index in indices)

    def record_clock(self, indices: Sequence[int], replica: int, clock: int) -> None:
        """See `StalenessBarrier.record_clock`."""
        self.barrier.record_clock([self.segment(index).span.index for index in indices], replica, clock)

    # -- writing -----------------------------------------------------------------------------------------

    def push(
        self,
        push: Push,
        index: int,
        gradient: np.ndarray,
        offset: int = 0,
        read_version: int = 0,
        form: object = None,
    ) -> SegmentResult:
        """Apply, stage or assign one segment of a push.

        Parameters
        ----------
        gradient
            1-D float32, at most as long as the segment less `offset`; where it is writable, its owner may change it as
            soon as this returns.
        read_version
            Version of this segment that the gradient was computed from; staleness counts from the incarnation's start.
        form
            Encoded form of the gradient, where it was encoded, for the follower; None: not encoded.

        Raises
        ------
        Rejected
            Fenced incarnation, sequence gap, wrong length, unknown segment, or a push before all initial values.
        """
        segment = self.segment(index)
        segment.check(gradient, offset, push.packed)
        with segment.lock:
            segment.taken += 1
            self._check_here(segment)
            self._admission.admit(push, segment.span, gradient)
            push, version, staleness = segment.received(push), segment.version, 0
            rate, lost = segment.rate_of(push), segment.ledger.rebase(push) if push.bundle is None else 0
            if push.bundle is not None:
                outcome = segment.add(push, gradient, self.ordered)
            elif push.assign:
                outcome = self._assign(segment, push, gradient, offset)
            elif self.staleness == 0:
                outcome = segment.stage(push.at(rate), gradient)
                staleness = max(0, segment.rounds - push.clock) if outcome is Outcome.STAGED else 0
            else:
                # A push without rows of a bucket was computed from none of its versions.
                late = max(0, version - max(read_version, segment.first_version)) if len(gradient) else 0
                rate = rate / np.float32(max(1, late)) if self.staleness_aware else rate
                outcome = segment.apply(push, gradient, offset, rate)
                staleness = late if outcome is Outcome.APPLIED else 0
                if self.staleness is not None:
                    self.barrier.applied(segment, push)
            skipped = push.assign and outcome is Outcome.DUPLICATE
            if outcome is not Outcome.DUPLICATE or skipped or push.base is not None:
                segment.append_journal(
                    lambda: PushRecord(index, version, push.at(rate), gradient, offset, form, skipped=skipped)
                )
        if self.staleness is not None and not push.assign and push.bundle is None:
            self.barrier.arrived(segment, push, outcome is Outcome.DUPLICATE)
        self.counters.pushes += outcome is not Outcome.DUPLICATE
        self.counters.duplicates += outcome is Outcome.DUPLICATE
        return SegmentResult(outcome, staleness, lost)

    def exchange(
        self,
        push: Push,
        parts: Sequence[tuple[int, np.ndarray]],
        into: Callable[[SegmentSpan], np.ndarray] = _new_array,
    ) -> tuple[list[Answer], int, int]:
        """Apply the segments of one message of an exchange; each is (index, the worker's numbers).

        Parameters
        ----------
        into
            Returns the (length,) float32 array that receives a segment's answer. It is the cached reply too: it must
            not change before the pusher has all answers to this exchange.

        Returns
        -------
        answers, duplicates, lost
            Version and numbers of each segment before the exchange; for a duplicate, those returned the first time.
            Number of duplicates. Earlier exchanges of this pusher that were lost with the shard's former incarnation.

        Raises
        ------
        Rejected
            As `push` does; or the exchange is a duplicate whose reply is no longer in the cache.
        Moved
            It is a duplicate of one that is being applied (lock-free).
        """
        message = self.answers.number()
        answers, duplicates, most = [], 0, 0
        for index, weights in parts:
            segment = self.segment(index)
            if len(weights) != segment.span.length or segment.span.by_key:
                raise Rejected(f"segment {index}: {len(weights)} numbers of {segment.span.length} to exchange")
            with segment.lock:
                segment.taken += 1
                self._check_here(segment)
                self._admission.admit(push, segment.span, weights)
                most = max(most, segment.ledger.rebase(push))
                again = not segment.ledger.expect(push)
                if again:
                    answer = self._answered(segment, push, into)
                else:
                    answer = segment.version, into(segment.span)
                    segment.exchange(push, weights, answer[1], rounds=self.staleness == 0)
                    segment.append_journal(
                        functools.partial(PushRecord, index, answer[0], push, weights, exchange=message)
                    )
                self.answers.keep(push, message, index, answer)
            duplicates += again
            answers.append(answer)
            if self.staleness is not None:
                self.barrier.arrived(segment, push)
        self.counters.pushes += len(parts) - duplicates
        self.counters.duplicates += duplicates
        return answers, duplicates, most

    def _answered(self, segment: Segment, push: Push, into: Callable[[SegmentSpan], np.ndarray]) -> Answer:
        """A copy of the cached reply to an exchange that is a duplicate."""
        found, index = self.answers.find(push, segment.span.index), segment.span.index
        if found is None and segment.busy:
            raise Moved(f"segment {index}: exchange {push.sequence} is being applied")
        if found is None:
            raise Rejected(f"segment {index}: exchange {push.sequence} was answered before, and long ago")
        version, before = found
        copy = into(segment.span)
        np.copyto(copy, before)
        return version, copy

    def _check_here(self, segment: Segment) -> None:
        """Raise Moved while a set is being loaded, or where the segment has migrated: a retry finds it."""
        if self._loading:
            raise Moved(f"segment {segment.span.index}: a snapshot set is being loaded")
        if segment.moved_to:
            raise Moved(f"segment {segment.span.index}: {segment.moved_to}")

    def _assign(self, segment: Segment, push: Push, values: np.ndarray, offset: int) -> Outcome:
        if push.vector == PARAMETERS and self.ready:
            segment.ledger.skip(push)
            return Outcome.DUPLICATE  # a late initialiser: the first complete values stay
        return segment.assign(push, values, offset)

    # -- statistics --------------------------------------------------------------------------------------

    def ledgers(self) -> dict[tuple[str, Pusher], tuple[LedgerRow, LedgerRow]]:
        """Lowest and highest row over the segments that are pushed to, per vector, replica and incarnation.

        Each rank of a replica pushes into segments of its own.
        """
        rows: dict[tuple[str, Pusher], list[LedgerRow]] = {}
        pushed = [segment for segment in self.segments.values() if segment.span.kind is not Kind.FIXED]
        for segment in pushed:
            with segment.lock:
                for (vector, pusher), last in segment.ledger.last.items():
                    rows.setdefault((vector, pusher._replace(rank=0)), []).append(last)
        count = len(pushed)
        return {key: (min(seen) if len(seen) == count else NO_PUSH, max(seen)) for key, seen in rows.items()}

    def lost_of(self) -> dict[Pusher, int]:
        """By replica and incarnation: pushes that were lost with earlier incarnations, the most over the segments."""
        lost: dict[Pusher, int] = {}
        for segment in self.segments.values():
            with segment.lock:
                for pusher, count in segment.ledger.lost_of.items():
                    whole = pusher._replace(rank=0)
                    lost[whole] = max(lost.get(whole, 0), count)
        return lost

    def versions(self) -> list[int]:
        """Version of every segment, by rising index."""
        return [segment.version for _, segment in sorted(self.segments.items())]

    def lost(self) -> list[int]:
        """Pushes that were lost with earlier incarnations, of every segment, by rising index."""
        return [segment.ledger.lost for _, segment in sorted(self.segments.items())]

    def taken(self) -> dict[int, int]:
        """Pushes received for each segment, by its number."""
        return {index: segment.taken for index, segment in self.segments.items()}

    def waits(self) -> tuple[int, float]:
        """How often a thread found a segment's lock held, and the seconds that all threads waited."""
        locks = [segment.lock for segment in self.segments.values()]
        return sum(lock.waits for lock in locks), sum(lock.waited_s for lock in locks)

    # -- recovery ----------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Drop all contents, and be neither readable nor ready, until the shard is loaded."""
        self._admission.ready, self._loading = False, True
        for segment in self.segments.values():
            with segment.lock:
                segment.empty()

    def load(self, stored: StoredSegment, shard_epoch: int, again: bool = False) -> None:
        """Load one segment from a set, in incarnation `shard_epoch`; `again` as in `Segment.load`.

        Raises
        ------
        KeyError
            Where the set lacks some of the rule's state.
        """
        segment = self.segment(stored.span.index)
        with segment.lock:
            segment.load(stored, shard_epoch, again)
            self.barrier.restored(segment)
            if isinstance(segment.rule, ElasticMove):
                self._answer_again(segment)

    def _answer_again(self, segment: Segment) -> None:
        """Keep replies to the exchanges that a set counts: theirs may not have arrived, and are not in the set.

        They are the centre as it is now; the earlier one is lost.
        """
        answer = segment.version, segment.vectors[PARAMETERS].copy()
        rows = segment.ledger.last.items()
        counted = [(pusher, row.sequence) for (vector, pusher), row in rows if vector == PARAMETERS]
        self.answers.import_segment(segment.span.index, dict.fromkeys(counted, answer))
