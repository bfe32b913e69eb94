"""Membership and clocks of the replicas for a staleness bound of N >= 1. No wall clock, no socket.

A replica that has work is a member: the shards allow no replica to be more than N + 1 clocks ahead of it. Its clock
counts its mini-batches and continues from lease to lease, so a busy replica causes no membership change. A replica
without work (no data left, an evaluation, a closing job) stops being a member when it requests work, because it would
block the others. A replica that joins or returns starts at the current clock, the highest that was pushed to any shard:
the shards receive the new membership first and reply with their clocks. Then it is behind no replica and blocks none.

There are no blocks, unlike for replicas in lockstep (see `synchronous`): at the end of a block the fast replicas wait
for the slowest, which a staleness bound above 0 is meant to avoid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class BoundedParticipant:
    """One incarnation's membership; `clock` is where its next lease begins, None until the shards have acknowledged."""

    incarnation: int
    since: int  # member epoch
    clock: int | None = None


@dataclass
class BoundedStalenessPolicy:
    """The members, by replica number.

    Attributes
    ----------
    clock
        One past the last clock that a granted lease covers.
    """

    clock: int = 0
    member_epoch: int = 0
    _members: dict[int, BoundedParticipant] = field(default_factory=dict)
    _told: int = 0  # member epoch that was last sent to the shards

    def enter(self, replica: int, incarnation: int) -> int | None:
        """The clock at which this incarnation's next lease begins; None until the shards have it as a member."""
        member = self._members.get(replica)
        if member is None:
            self.member_epoch += 1
            self._members[replica] = BoundedParticipant(incarnation, self.member_epoch)
            return None
        # An earlier incarnation of this number stays a member until the shards have fenced it.
        return member.clock if member.incarnation == incarnation else None

    def leased(self, replica: int, steps: int) -> None:
        """Advance a member's clock by `steps` leased mini-batches."""
        member = self._members[replica]
        assert member.clock is not None, f"replica {replica} was given a lease before it had a clock"
        member.clock += steps
        self.clock = max(self.clock, member.clock)

    def leave(self, replica: int, incarnation: int) -> None:
        """Remove this incarnation, which has no work, from the members."""
        member = self._members.get(replica)
        if member is not None and member.incarnation == incarnation:
            del self._members[replica]
            self.member_epoch += 1

    def membership_changed(self) -> bool:
        """Whether the membership has to be sent to the shards; true once per change."""
        told, self._told = self._told, self.member_epoch
        return told != self.member_epoch

    def membership(self) -> list[tuple[int, list[int]]]:
        """The members, from clock 0 on."""
        return [(0, sorted(self._members))]

    def shards_acknowledged(self, member_epoch: int, clock: int) -> None:
        """All shards have the members of this epoch; `clock` is the highest that was pushed to any of them."""
        for member in self._members.values():
            if member.clock is None and member.since <= member_epoch:
                member.clock = clock

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        members = [[replica, asdict(member)] for replica, member in self._members.items()]
        return {"clock": self.clock, "member_epoch": self.member_epoch, "members": members}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator; the membership is sent to the shards again."""
        self.clock, self.member_epoch = state["clock"], state["member_epoch"]
        self._told = self.member_epoch
        self._members = {replica: BoundedParticipant(**member) for replica, member in state["members"]}
