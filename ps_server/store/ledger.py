"""Duplicate detection: per vector and pusher, the last push that a segment has counted.

A push is applied when its number is the ledger's plus one, acknowledged as a duplicate when it is lower, and rejected
when it is higher: pushes before it are missing. The lease and the position of that push tell the coordinator which
samples are done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dbelief.core.push import NO_PUSH, PARAMETERS, LedgerRow, Push, Pusher
from dbelief.errors import Rejected

Key = tuple[str, Pusher]
"""A named vector and who pushes to it."""


@dataclass
class PushLedger:
    """The ledger of one segment; every method expects the segment's lock to be held.

    Attributes
    ----------
    segment
        Index of the segment, for errors.
    last
        By vector and pusher: the last push that was counted.
    bases
        By vector and pusher, for all that have pushed since the segment was made, or loaded from a set: the base of the
        first of these pushes, and the count of numbers that it skipped. They move with the segment to another shard,
        and remain in a follower that is promoted.
    lost
        Pushes on "w" that earlier incarnations acknowledged and that were lost with them, as their pushers reported.
    lost_of
        Those of each pusher, until it is forgotten.
    """

    segment: int
    last: dict[Key, LedgerRow] = field(default_factory=dict)
    bases: dict[Key, tuple[int, int]] = field(default_factory=dict)
    lost: int = 0
    lost_of: dict[Pusher, int] = field(default_factory=dict)

    def expect(self, push: Push) -> bool:
        """Whether the push is the next one; False for a duplicate.

        Raises
        ------
        Rejected
            Pushes before it are missing; names the number expected.
        """
        last = self.last.get((push.vector, push.pusher), NO_PUSH).sequence
        if push.sequence > last + 1:
            raise Rejected(
                f"segment {self.segment}: push {push.sequence} of replica {push.pusher.replica} on {push.vector!r} "
                f"was received where {last + 1} was expected"
            )
        return push.sequence == last + 1

    def record(self, push: Push) -> None:
        """Count a push: its pusher's next one is expected."""
        self.last[push.vector, push.pusher] = push.row

    def skip(self, push: Push) -> None:
        """Count a push without its values; a duplicate changes nothing."""
        if self.expect(push):
            self.record(push)

    def row(self, pusher: Pusher) -> LedgerRow:
        """The last push of a pusher into the parameters that was counted."""
        return self.last.get((PARAMETERS, pusher), NO_PUSH)

    def withdraw(self, pusher: Pusher, before: LedgerRow) -> None:
        """Do not count a pusher's last gradients, which waited for their rounds and were dropped.

        `before`: the row as it was before the first of them.
        """
        self.last[PARAMETERS, pusher] = before

    def rebase(self, push: Push) -> int:
        """Continue from the number that a pusher names as its base; returns how many of its pushes were lost.

        Only a pusher's first push since the segment was made or loaded may skip numbers: a number missing later is a
        gap, whatever base the push names. The same push, sent again, gets the same count again.
        """
        key = (push.vector, push.pusher)
        base = 0 if push.base is None else push.base
        if key not in self.bases:
            last = self.last.get(key, NO_PUSH)
            lost = max(0, base - 1 - last.sequence)
            if push.sequence > last.sequence + lost + 1:
                return 0  # rejected as a gap: it leaves no trace
            self.bases[key] = base, lost
            if lost:
                self.last[key] = last._replace(sequence=last.sequence + lost)
            if lost and push.vector == PARAMETERS and not push.assign:  # else lost initial values are pushed again
                self.lost += lost
                self.lost_of[push.pusher] = self.lost_of.get(push.pusher, 0) + lost
        first_base, lost = self.bases[key]
        return lost if base == first_base else 0

    def forget(self, incarnations: Collection[int]) -> None:
        """Drop the rows of pushers that are fenced for good."""
        for rows in (self.last, self.bases):
            for key in [key for key in rows if key[1].incarnation in incarnations]:
                del rows[key]
        for pusher in [pusher for pusher in self.lost_of if pusher.incarnation in incarnations]:
            del self.lost_of[pusher]

    def restore(
        self, last: Mapping[Key, LedgerRow], lost: int, lost_of: Mapping[Pusher, int], same_incarnation: bool = False
    ) -> None:
        """Become what a snapshot set holds.

        `same_incarnation`: the shard was not restarted, so acknowledged pushes are not expected again.
        """
        known = {key: max(row, last.get(key, NO_PUSH)) for key, row in self.last.items()} if same_incarnation else {}
        self.last = dict(last) | known
        self.lost, self.lost_of = lost, dict(lost_of)
        self.bases.clear()
