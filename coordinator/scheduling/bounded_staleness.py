"""Whose clock counts, for a staleness dial of N >= 1. No clock on the wall, no socket.

A replica with work is a member: the shards let nobody lead it by more than N + 1 clocks. Its clock counts its
mini-batches and goes on from lease to lease, so that one who is busy gives the shards no news. One without work
(nothing is left, an evaluation is to be made, the job closes) is no member from the moment it asks, or it would hold up
the others. One who comes, or comes back, takes the current clock, the highest that was pushed to any shard: the shards
are told of it first and answer with theirs. Then it is behind nobody, and nobody stops for it.

There are no blocks, as replicas in lockstep need (see `rounds`): a block's end is where the fast ones wait for the
slowest, and to spare them that is what a dial above 0 is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class BoundedParticipant:
    """One life's place; `clock` is where its next lease begins, None until the shards have answered."""

    incarnation: int
    since: int  # member epoch
    clock: int | None = None


@dataclass
class BoundedStalenessPolicy:
    """The members, by replica number.

    Attributes
    ----------
    clock
        One past the last clock that is covered by a lease: those that were given out lie below.
    """

    clock: int = 0
    member_epoch: int = 0
    _members: dict[int, BoundedParticipant] = field(default_factory=dict)
    _told: int = 0  # member epoch that the shards are being told of

    def enter(self, replica: int, incarnation: int) -> int | None:
        """Where this life's next lease begins; None while the shards do not know it for a member."""
        member = self._members.get(replica)
        if member is None:
            self.member_epoch += 1
            self._members[replica] = BoundedParticipant(incarnation, self.member_epoch)
            return None
        # Another life of this number stays a member until the shards have fenced it.
        return member.clock if member.incarnation == incarnation else None

    def leased(self, replica: int, steps: int) -> None:
        """A member was given so many mini-batches."""
        member = self._members[replica]
        assert member.clock is not None, f"replica {replica} was given a lease before it had a clock"
        member.clock += steps
        self.clock = max(self.clock, member.clock)

    def leave(self, replica: int, incarnation: int) -> None:
        """This life has no work any more."""
        member = self._members.get(replica)
        if member is not None and member.incarnation == incarnation:
            del self._members[replica]
            self.member_epoch += 1

    def membership_changed(self) -> bool:
        """Whether the shards are to be told of the members; each time once."""
        told, self._told = self._told, self.member_epoch
        return told != self.member_epoch

    def membership(self) -> list[tuple[int, list[int]]]:
        """Who is a member, from clock 0 on."""
        return [(0, sorted(self._members))]

    def shards_acknowledged(self, member_epoch: int, clock: int) -> None:
        """All shards know the members of this epoch, and `clock` is the highest that was pushed to any of them."""
        for member in self._members.values():
            if member.clock is None and member.since <= member_epoch:
                member.clock = clock

    def state(self) -> dict[str, Any]:
        """All of it; JSON holds it."""
        members = [[replica, asdict(member)] for replica, member in self._members.items()]
        return {"clock": self.clock, "member_epoch": self.member_epoch, "members": members}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over from another coordinator; the shards are told anew."""
        self.clock, self.member_epoch = state["clock"], state["member_epoch"]
        self._told = self.member_epoch
        self._members = {replica: BoundedParticipant(**member) for replica, member in state["members"]}
