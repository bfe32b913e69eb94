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

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from dbelief.core.lease import DataLease

from ..core.effects import Action, SetMembership
from ..core.messages import EvaluationLease, Wait, Wants, WorkRequest
from ..core.warm_start import WarmStart
from .leases import Leases
from .sync_policy import LOCKSTEP_RETRY_S, SyncPolicy


@dataclass
class BoundedParticipant:
    """One incarnation's membership; `clock` is where its next lease begins, None until the shards have acknowledged."""

    incarnation: int
    since: int  # member epoch
    clock: int | None = None


@dataclass
class BoundedStalenessPolicy(SyncPolicy):
    """The members, by replica number, and their leases."""

    waits_at_shards: ClassVar[bool] = True

    leases: Leases
    warm_start: WarmStart = field(default_factory=WarmStart)
    clock: int = 0
    member_epoch: int = 0
    _members: dict[int, BoundedParticipant] = field(default_factory=dict)
    _sent: int = 0  # member epoch that was last sent to the shards

    def held(self, request: WorkRequest) -> DataLease | None:
        """See `SyncPolicy.held`."""
        return self.leases.find_granted(request.incarnation, request.last_lease)

    def request_lease(self, request: WorkRequest, living: Collection[int], now_s: float) -> DataLease | Wait | None:
        """See `SyncPolicy.request_lease`; `Wait` until the shards have the replica as a member."""
        replica, incarnation = request.replica, request.incarnation
        if not self.warm_start.admits(incarnation):
            return None
        room = self.warm_start.room(self.leases.leased, request.wants is Wants.TRAINING)
        if not self.leases.room(room):
            return None
        clock = self.enter(replica, incarnation)
        if clock is None:
            return Wait(LOCKSTEP_RETRY_S)
        lease = self.leases.grant(replica, incarnation, room, clock, self.member_epoch)
        assert lease is not None, "there was room for a lease"
        self.leased(replica, self.leases.steps(lease.samples))
        return lease

    def without_lease(self, request: WorkRequest, work: EvaluationLease | None) -> None:
        """Remove this incarnation from the members: it would block the others."""
        self.leave(request.replica, request.incarnation)

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """See `SyncPolicy.replica_lost`: another replica may train alone now."""
        self.warm_start.remove(incarnation)

    def fenced(self, replica: int, incarnation: int) -> list[Action]:
        """Remove an incarnation that can push no more, so that the others need not wait for it."""
        self.leave(replica, incarnation)
        return self.membership_changes()

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

    def membership_changes(self) -> list[Action]:
        """See `SyncPolicy.membership_changes`."""
        sent, self._sent = self._sent, self.member_epoch
        return [self.membership()] if sent != self.member_epoch else []

    def membership(self) -> SetMembership:
        """The members, from clock 0 on."""
        return SetMembership(self.member_epoch, ((0, tuple(sorted(self._members))),))

    def shards_acknowledged(self, member_epoch: int, clock: int) -> None:
        """See `SyncPolicy.shards_acknowledged`: the new members start at `clock`."""
        for member in self._members.values():
            if member.clock is None and member.since <= member_epoch:
                member.clock = clock

    def resume(self, clock: int, member_epoch: int) -> None:
        """See `SyncPolicy.resume`; there are no members yet, a change that the shards must receive."""
        self.clock, self.member_epoch = clock, member_epoch + 1

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        members = [[replica, asdict(member)] for replica, member in self._members.items()]
        return {"clock": self.clock, "member_epoch": self.member_epoch, "members": members}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator; the membership is sent to the shards again."""
        self.clock, self.member_epoch = state["clock"], state["member_epoch"]
        self._sent = self.member_epoch
        self._members = {replica: BoundedParticipant(**member) for replica, member in state["members"]}
