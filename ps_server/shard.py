"""A shard: a store of named vectors, cut in segments, with a few operations on them. It knows no wire.

Locks: one per segment, held for one copy or one rule; `_table` guards what holds for the whole shard and is never
held while a segment's lock is taken. A push and a pull of the same segment exclude each other, so no reader sees
half an update; pushes to different segments run side by side, for the rules release the interpreter lock. A lock-free
shard (Hogwild) lets go of a segment's lock while it copies numbers or applies the rule: `segment.py` says what holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from dbelief.errors import Moved, Refused
from dbelief.layout import Span
from dbelief.optim import Rule
from dbelief.parts import Stored
from dbelief.pushes import ACCRUED, PARAMETERS, Push, Pusher

from .answers import Answer, Answers
from .dial import Dial
from .limits import Pushers
from .segment import Outcome, Segment

T = TypeVar("T")

DTYPES: Mapping[str, type[np.generic]] = {ACCRUED: np.float64}
"""Element type of a named vector; float32 where it is not named here."""


@dataclass
class Counters:
    """What a shard has done, in segments."""

    pushes: int = 0
    pulls: int = 0
    duplicates: int = 0


class Taken(NamedTuple):
    """What became of one segment of a push.

    `staleness` in versions; `lost` is how many earlier pushes of this pusher died with the shard's former life.
    """

    outcome: Outcome
    staleness: int
    lost: int


def _whole(version: int, values: np.ndarray | None) -> tuple[int, bytes | None]:
    return version, None if values is None else values.tobytes()


class Shard:
    """The segments of one shard and all that may be done with them.

    Parameters
    ----------
    spans
        Rows of the job's segment table that live here, a contiguous run; may be empty.
    rule
        The job's update rule; its state lies beside "w".
    staleness
        The dial in clocks: 0 holds each round until all members pushed it, N lets nobody lead by more than N + 1,
        None lets everything through.
    on_apply
        Called under the segment's lock with (segment, pusher, sequence, rate) for every push that is applied; the rate
        is the one applied.
    staleness_aware
        With the dial at None: a push's rate is divided by its staleness in each segment, where that is above 1 (Zhang
        et al. 2016).
    ordered
        Bundles of a pass are added by rising number.
    lock_free
        With the dial at None: pushes and exchanges of a segment run side by side (see `Segment`).
    """

    def __init__(
        self,
        spans: Sequence[Span],
        rule: Rule,
        staleness: int | None = None,
        on_apply: Callable[[int, Pusher, int, float], None] | None = None,
        staleness_aware: bool = False,
        ordered: bool = False,
        lock_free: bool = False,
    ) -> None:
        self.rule = rule
        self.staleness_aware = staleness_aware
        self.ordered = ordered
        self.staleness = staleness
        self.ready = False
        self._loading = False  # a set is being loaded over what it held
        self.counters = Counters()
        self.saving = threading.Lock()  # one set is written at a time
        self.segments = {span.index: Segment(span, rule, lock_free=lock_free, on_apply=on_apply) for span in spans}
        self._size = sum(span.length for span in spans)
        self._table = threading.Lock()
        self._dial = Dial(staleness, self.segments)
        self._fenced: set[int] = set()
        self.answers = Answers()
        self._pushers = Pushers()
        for segment in self.segments.values():
            length = segment.span.length
            segment.vectors[PARAMETERS] = np.zeros(length, np.float32)
            segment.state = tuple(np.full(length, rule.initial(name), np.float32) for name in rule.state)

    @property
    def size(self) -> int:
        """How many parameters live here."""
        return self._size

    def _segment(self, index: int) -> Segment:
        try:
            return self.segments[index]
        except KeyError:
            raise Refused(f"segment {index} does not live here") from None

    # -- what the coordinator tells ----------------------------------------------------------------------

    def make_ready(self) -> None:
        """Accept pushes by the rule from now on.

        Raises
        ------
        Refused
            Where initial values are missing; names the first segment without.
        """
        self.check_complete()
        self.ready, self._loading = True, False

    def check_complete(self) -> None:
        """Raise Refused where initial values are missing; names the first segment without."""
        missing = sorted(index for index, segment in self.segments.items() if not segment.holds(PARAMETERS))
        if missing:
            raise Refused(
                f"segment {missing[0]} has no initial values ({len(missing)} of {len(self.segments)} miss them)"
            )

    def fence(self, incarnations: Iterable[int]) -> None:
        """Refuse these lives from now on; when this returns, their ledgers are final."""
        with self._table:
            self._fenced.update(incarnations)
        for segment in self.segments.values():
            with segment.lock:
                # A push that had passed the gate is through now. What only waits for a round goes back with its data:
                # a snapshot would not hold it.
                segment.drop_staged(self._fenced)
        self._dial.close_rounds(self.segments)

    def forget(self, incarnations: Iterable[int]) -> None:
        """Drop the ledger rows of lives that are fenced for good."""
        gone = set(incarnations)
        self.answers.forget(gone)
        self._pushers.forget(gone)
        for segment in self.segments.values():
            with segment.lock:
                for rows in (segment.ledger, segment.based):
                    for key in [key for key in rows if key[1].incarnation in gone]:
                        del rows[key]

    def set_membership(self, member_epoch: int, rounds: Sequence[tuple[int, Iterable[int]]]) -> int:
        """See `Dial.set_membership`."""
        return self._dial.set_membership(member_epoch, rounds)

    # -- reading -----------------------------------------------------------------------------------------

    def pull(self, vector: str, index: int, newer_than: int | None = None) -> tuple[int, bytes | None]:
        """One segment of a named vector: its version and its bytes, None where it is not newer than asked."""
        return self.read(vector, index, newer_than, _whole)

    def read(self, vector: str, index: int, newer_than: int | None, form: Callable[[int, np.ndarray | None], T]) -> T:
        """Give one segment of a named vector to `form`, which copies out of it, and return what that makes.

        `form` gets its version and its numbers, None where it is not newer than asked, under the segment's lock.

        Raises
        ------
        Refused
            Where the segment does not live here, or has no such vector whole.
        """
        segment = self._segment(index)
        with segment.lock:
            self._check_here(index)
            if not segment.holds(vector):
                raise Refused(f"segment {index}: no vector {vector!r} yet")
            held = newer_than is not None and segment.version <= newer_than
            formed = form(segment.version, None if held else segment.vectors[vector])
        self.counters.pulls += 1
        return formed

    def wait_for_clock(self, indices: Iterable[int], clock: int, timeout_s: float) -> None:
        """Wait until these segments may be read for `clock` (see `Dial.wait`); returns at once in free running."""
        self._dial.wait([self._segment(index) for index in indices], clock, timeout_s)

    def heard(self, indices: Sequence[int], replica: int, clock: int) -> None:
        """See `Dial.heard`."""
        self._dial.heard([self._segment(index).span.index for index in indices], replica, clock)

    # -- writing -----------------------------------------------------------------------------------------

    def push(self, push: Push, index: int, gradient: np.ndarray, offset: int = 0, read_version: int = 0) -> Taken:
        """Take one segment of a push.

        Parameters
        ----------
        gradient
            1-D float32, at most as long as the segment less `offset`; read only during the call.
        read_version
            Version of this segment that the gradient was computed from; staleness counts from this life's beginning.

        Raises
        ------
        Refused
            Fenced life, sequence gap, wrong length, unknown segment, or pushes before initial values are complete.
        """
        segment = self._segment(index)
        if offset + len(gradient) > segment.span.length or not len(gradient):
            raise Refused(f"segment {index}: {len(gradient)} numbers at {offset} do not fit its {segment.span.length}")
        with segment.lock:
            segment.taken += 1
            self._gate(push, segment, gradient)
            self._pushers.admit(push.pusher)
            lost = segment.rebase(push) if push.bundle is None else 0
            staleness = 0
            if push.bundle is not None:
                outcome = segment.add(push, gradient, self.ordered)
            elif push.assign:
                outcome = self._assign(segment, push, gradient, offset)
            elif self.staleness == 0:
                outcome = segment.stage(push, gradient)
            else:
                late = max(0, segment.version - max(read_version, segment.born))
                outcome = segment.apply(push, gradient, offset, self._rate(push, late))
                staleness = late if outcome is Outcome.APPLIED else 0
                self._dial.applied(segment, push)
        if not push.assign and push.bundle is None:
            self._dial.arrived(segment, push)
        self.counters.pushes += outcome is not Outcome.DUPLICATE
        self.counters.duplicates += outcome is Outcome.DUPLICATE
        return Taken(outcome, staleness, lost)

    def exchange(self, push: Push, parts: Sequence[tuple[int, np.ndarray]]) -> tuple[list[Answer], int, int]:
        """Take the segments of one message of an exchange: (index, the worker's numbers) each.

        Returns
        -------
        answers, duplicates, lost
            Version and numbers of each segment as they were before; where it was done before, those told then. How
            many were. How many earlier exchanges of this pusher died with the shard's former life.

        Raises
        ------
        Refused
            As `push` does; or done before, and told longer ago than answers are kept.
        """
        self.answers.begin(push.pusher, push.sequence)
        answers, duplicates, most = [], 0, 0
        for index, weights in parts:
            segment = self._segment(index)
            if len(weights) != segment.span.length:
                raise Refused(f"segment {index}: {len(weights)} numbers of {segment.span.length} to exchange")
            with segment.lock:
                segment.taken += 1
                before = segment.present()  # first: without a lock it is let go of here, and from the gate on it holds
                self._gate(push, segment, weights)
                self._pushers.admit(push.pusher)
                most = max(most, segment.rebase(push))
                again = not segment.expect(push)
                answer = self.answers.find(push.pusher, push.sequence, index) if again else before
                if answer is None:
                    raise Refused(f"segment {index}: exchange {push.sequence} was answered before, and long ago")
                self.answers.keep(push.pusher, index, answer)
                duplicates += again
                if not again and self.staleness == 0:
                    segment.stage(push, weights)
                elif not again:
                    segment.apply(push, weights, 0, push.rate)
            answers.append(answer)
            self._dial.arrived(segment, push)
        self.counters.pushes += len(parts) - duplicates
        self.counters.duplicates += duplicates
        return answers, duplicates, most

    def _rate(self, push: Push, staleness: int) -> np.float32:
        return push.rate / np.float32(max(1, staleness)) if self.staleness_aware else push.rate

    def _check_here(self, index: int) -> None:
        """Raise Moved while a set is being loaded: whoever asks again finds it."""
        if self._loading:
            raise Moved(f"segment {index}: a snapshot set is being loaded")

    def _gate(self, push: Push, segment: Segment, gradient: np.ndarray) -> None:
        """Refuse what must not touch the segment; nothing is changed before this."""
        index = segment.span.index
        if push.pusher.incarnation in self._fenced:
            raise Refused(f"segment {index}: replica {push.pusher.replica} in life {push.pusher.incarnation} is fenced")
        self._check_here(index)
        if not push.assign and not self.ready:
            raise Refused(f"segment {index}: initial values are not complete yet")
        if push.bundle is not None:
            self._gate_bundle(push, segment, gradient)
            return
        if not push.assign and push.vector != PARAMETERS:
            raise Refused(f"segment {index}: the rule applies to {PARAMETERS!r}, not to {push.vector!r}")
        dtype = np.dtype(DTYPES.get(push.vector, np.float32))
        if gradient.dtype != dtype:
            raise Refused(f"segment {index}: {gradient.dtype} numbers for {push.vector!r}, which holds {dtype}")
        if not push.assign and self.staleness is not None and len(gradient) != segment.span.length:
            raise Refused(
                f"segment {index}: with the staleness dial a push holds all {segment.span.length} numbers, "
                f"not {len(gradient)}"
            )

    @staticmethod
    def _gate_bundle(push: Push, segment: Segment, gradient: np.ndarray) -> None:
        index = segment.span.index
        if push.assign or push.vector != ACCRUED:
            raise Refused(f"segment {index}: bundles are added to {ACCRUED!r}, not to {push.vector!r}")
        if len(gradient) != segment.span.length:
            raise Refused(f"segment {index}: a bundle has all {segment.span.length} numbers, not {len(gradient)}")
        if push.clock < 1:
            raise Refused(f"segment {index}: bundle {push.bundle} of pass {push.clock}; passes count from 1")

    def _assign(self, segment: Segment, push: Push, values: np.ndarray, offset: int) -> Outcome:
        if push.vector == PARAMETERS and self.ready:
            segment.skip(push)
            return Outcome.DUPLICATE  # a late initialiser: the first complete values stay
        return segment.assign(push, values, offset)

    # -- telling -----------------------------------------------------------------------------------------

    def ledgers(self) -> dict[tuple[str, Pusher], tuple[int, int]]:
        """Per vector and replica, in one life, the lowest and the highest number applied over the segments.

        Of a replica's ranks each pushes into segments of its own.
        """
        rows: dict[tuple[str, Pusher], list[int]] = {}
        for segment in self.segments.values():
            with segment.lock:
                for (vector, pusher), last in segment.ledger.items():
                    rows.setdefault((vector, pusher._replace(rank=0)), []).append(last)
        count = len(self.segments)
        return {key: (min(seen) if len(seen) == count else 0, max(seen)) for key, seen in rows.items()}

    def versions(self) -> list[int]:
        """Version of every segment, by rising index."""
        return [segment.version for _, segment in sorted(self.segments.items())]

    def lost(self) -> list[int]:
        """Pushes that are gone with earlier lives, of every segment, by rising index."""
        return [segment.lost for _, segment in sorted(self.segments.items())]

    def taken(self) -> dict[int, int]:
        """Pushes that came for each segment, by its number."""
        return {index: segment.taken for index, segment in self.segments.items()}

    def waits(self) -> tuple[int, float]:
        """How often somebody found a segment's lock held, and how many seconds all have waited."""
        locks = [segment.lock for segment in self.segments.values()]
        return sum(lock.waits for lock in locks), sum(lock.waited_s for lock in locks)

    # -- coming back -------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Hold nothing that could be read or made ready, until it is loaded."""
        self.ready, self._loading = False, True
        for segment in self.segments.values():
            with segment.lock:
                segment.empty()

    def load(self, stored: Stored, shard_epoch: int, again: bool = False) -> None:
        """Put a segment back as a set holds it, in the life `shard_epoch`; `again` as `Segment.load`.

        Raises
        ------
        KeyError
            Where the set lacks some of the rule's state.
        """
        segment = self._segment(stored.span.index)
        with segment.lock:
            segment.load(stored, shard_epoch, again)
            self._dial.came_back(segment)
