"""A shard: a store of named vectors, cut in segments, with a few operations on them. It knows no wire.

Locks: one per segment, held for one copy or one rule; `_table` guards what holds for the whole shard and is never
held while a segment's lock is taken. A push and a pull of the same segment exclude each other, so no reader sees
half an update; pushes to different segments run side by side, for the rules release the interpreter lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dbelief.errors import Refused, Unreachable
from dbelief.layout import Span
from dbelief.optim import Rule
from dbelief.parts import Stored
from dbelief.pushes import PARAMETERS, Push, Pusher

from .membership import Membership
from .segment import Outcome, Segment

DTYPES: Mapping[str, type[np.generic]] = {"accrued": np.float64}
"""Element type of a named vector; float32 where it is not named here."""


@dataclass
class Counters:
    """What a shard has done, in segments."""

    pushes: int = 0
    pulls: int = 0
    duplicates: int = 0
    lost: int = 0


class Taken(NamedTuple):
    """What became of one segment of a push.

    `staleness` in versions; `lost` is how many earlier pushes of this pusher died with the shard's former life.
    """

    outcome: Outcome
    staleness: int
    lost: int


class Shard:
    """The segments of one shard and all that may be done with them.

    Parameters
    ----------
    spans
        Rows of the job's segment table that live here, a contiguous run; may be empty.
    rule
        The job's update rule; its state lies beside "w".
    staleness
        The dial in clocks: 0 holds each round until all members pushed it, None lets every push through.
    on_apply
        Called under the segment's lock with (segment, pusher, sequence, rate) for every push that is applied.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        rule: Rule,
        staleness: int | None = None,
        on_apply: Callable[[int, Pusher, int, float], None] | None = None,
    ) -> None:
        self.rule = rule
        self.staleness = staleness
        self.ready = False
        self.counters = Counters()
        self.segments = {span.index: Segment(span, rule, on_apply=on_apply) for span in spans}
        self._size = sum(span.length for span in spans)
        self._table = threading.Lock()
        self._turn = threading.Condition()  # a round closed, or members changed
        self._membership = Membership()
        self._fenced: set[int] = set()
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
        self.ready = True

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
        self._close_rounds(self.segments)

    def forget(self, incarnations: Iterable[int]) -> None:
        """Drop the ledger rows of lives that are fenced for good."""
        gone = set(incarnations)
        for segment in self.segments.values():
            with segment.lock:
                for key in [key for key in segment.ledger if key[1].incarnation in gone]:
                    del segment.ledger[key]

    def set_membership(self, member_epoch: int, rounds: Sequence[tuple[int, Iterable[int]]]) -> None:
        """Say who takes part in which round; an older member epoch than the one known is ignored."""
        with self._table:
            if member_epoch <= self._membership.member_epoch:
                return
            self._membership = Membership(member_epoch, [(c, frozenset(r)) for c, r in sorted(rounds)])
        self._close_rounds(self.segments)

    # -- reading -----------------------------------------------------------------------------------------

    def pull(self, vector: str, index: int, newer_than: int | None = None) -> tuple[int, bytes | None]:
        """One segment of a named vector: its version and its bytes, None where it is not newer than asked.

        Raises
        ------
        Refused
            Where the segment does not live here, or has no such vector whole.
        """
        segment = self._segment(index)
        with segment.lock:
            if not segment.holds(vector):
                raise Refused(f"segment {index}: no vector {vector!r} yet")
            version = segment.version
            data = None if newer_than is not None and version <= newer_than else segment.vectors[vector].tobytes()
        self.counters.pulls += 1
        return version, data

    def wait_for_clock(self, indices: Iterable[int], clock: int, timeout_s: float) -> None:
        """Wait until every round before `clock` is applied to these segments; only with the dial set.

        Raises
        ------
        Unreachable
            After `timeout_s` without it; names the segment and the replicas that are missing.
        """
        if self.staleness is None:
            return
        wanted = list(indices)

        due = clock - self.staleness

        def behind() -> list[int]:
            return [i for i in wanted if self._segment(i).rounds < due]

        with self._turn:
            self._turn.wait_for(lambda: not behind(), timeout_s)
        left = behind()
        if not left:
            return
        late = self._segment(left[0])
        with late.lock:
            clock, here = late.rounds, {pusher.replica for pusher in late.staged.get(late.rounds, {})}
        absent = sorted(self._membership.at(clock) - here)
        raise Unreachable(f"segment {late.span.index}: round {clock} still waits for replicas {absent}")

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
            self._gate(push, segment, gradient)
            lost = segment.rebase(push)
            staleness = 0
            if push.assign:
                outcome = self._assign(segment, push, gradient, offset)
            elif self.staleness is None:
                late = max(0, segment.version - max(read_version, segment.born))
                outcome = segment.apply(push, gradient, offset)
                staleness = late if outcome is Outcome.APPLIED else 0
            else:
                outcome = segment.stage(push, gradient)
        if outcome is Outcome.STAGED:
            self._close_rounds([index])
        self.counters.pushes += outcome is not Outcome.DUPLICATE
        self.counters.duplicates += outcome is Outcome.DUPLICATE
        self.counters.lost += lost
        return Taken(outcome, staleness, lost)

    def _gate(self, push: Push, segment: Segment, gradient: np.ndarray) -> None:
        """Refuse what must not touch the segment; nothing is changed before this."""
        index = segment.span.index
        if push.pusher.incarnation in self._fenced:
            raise Refused(f"segment {index}: replica {push.pusher.replica} in life {push.pusher.incarnation} is fenced")
        if not push.assign and not self.ready:
            raise Refused(f"segment {index}: initial values are not complete yet")
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

    def _assign(self, segment: Segment, push: Push, values: np.ndarray, offset: int) -> Outcome:
        if push.vector == PARAMETERS and self.ready:
            segment.skip(push)
            return Outcome.DUPLICATE  # a late initialiser: the first complete values stay
        return segment.assign(push, values, offset)

    def _close_rounds(self, indices: Iterable[int]) -> None:
        """Apply every round that is complete on these segments, and wake those who wait for it."""
        if self.staleness is None:
            return
        membership = self._membership  # replaced whole, never changed
        for index in indices:
            segment = self.segments[index]
            with segment.lock:
                while True:
                    members = membership.at(segment.rounds)
                    if not members and not membership.goes_on_after(segment.rounds):
                        break
                    if not segment.close_round(members):
                        break
        with self._turn:
            self._turn.notify_all()

    # -- telling -----------------------------------------------------------------------------------------

    def ledgers(self) -> dict[tuple[str, Pusher], tuple[int, int]]:
        """Per vector and pusher the lowest and the highest number applied over the segments."""
        rows: dict[tuple[str, Pusher], list[int]] = {}
        for segment in self.segments.values():
            with segment.lock:
                for key, last in segment.ledger.items():
                    rows.setdefault(key, []).append(last)
        count = len(self.segments)
        return {key: (min(seen) if len(seen) == count else 0, max(seen)) for key, seen in rows.items()}

    def versions(self) -> list[int]:
        """Version of every segment, by rising index."""
        return [segment.version for _, segment in sorted(self.segments.items())]

    # -- coming back -------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Hold nothing that could be read or made ready, until it is loaded."""
        self.ready = False
        for segment in self.segments.values():
            with segment.lock:
                segment.empty()

    def load(self, stored: Stored, shard_epoch: int) -> None:
        """Put a segment back as a set holds it, in the life `shard_epoch`.

        Raises
        ------
        KeyError
            Where the set lacks some of the rule's state.
        """
        segment = self._segment(stored.span.index)
        with segment.lock:
            segment.load(stored, shard_epoch)
