"""Assignment of followers to shards, and which followers are in sync. No clock, no socket.

A follower is another shard process, of the kind "follower", with the number of the shard that it replicates. It counts
as in sync (`whole`) once its leader reports that it has everything; that is persisted. From then on the leader
acknowledges nothing without it. If the leader fails then, the follower is promoted, with all data that was ever
acknowledged. If the follower fails or the link breaks, the leader acknowledges nothing until it is detached. The
detachment is persisted before it is sent. So a follower that may lack data is never promoted as in sync.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dbelief.core.placement import Placement

from ..core.effects import Action, AttachFollower, DetachFollower, LogEvent
from ..core.members import Member, Members

AGAIN_S = 1.0
"""Seconds between two attempts to attach a follower to a shard."""


@dataclass
class ShardReplication:
    """Replication link of one shard.

    Attributes
    ----------
    epoch
        Incremented with every change.
    follower
        The follower's incarnation; None: there is none.
    whole
        Whether the follower is in sync.
    promoted
        Incarnation that was promoted after the leader failed and is not in service yet; None: no promotion is pending.
    changed_s
        Time of the last attempt to attach a follower, on this coordinator's clock.
    """

    epoch: int = 0
    follower: int | None = None
    whole: bool = False
    promoted: int | None = None
    changed_s: float = -math.inf


class ReplicationManager:
    """Replication links of all shards of one job.

    Parameters
    ----------
    replication
        Copies of each segment: 1 or 2.

    Attributes
    ----------
    promotions
        Followers promoted so far.
    """

    def __init__(self, replication: int, members: Members) -> None:
        self._members = members
        self._wanted = replication > 1
        self._chains: dict[int, ShardReplication] = {}
        self.promotions = 0

    def _of(self, shard: int) -> ShardReplication:
        return self._chains.setdefault(shard, ShardReplication())

    @property
    def unfollowed(self) -> int:
        """Number of shards without an in-sync follower; 0 where no replication is configured."""
        if not self._wanted:
            return 0
        return sum(not self._of(member.number).whole for member in self._members.alive("shard"))

    def advance(
        self, placement: Placement | None, away: Collection[int], next_epoch: Callable[[], int], now_s: float
    ) -> Iterable[Action]:
        """Attach available followers to their shards; after a lost follower, at most one attempt per `AGAIN_S`.

        `placement`: None while shards run without followers.
        """
        if placement is None or not self._wanted:
            return
        followers = {member.number: member for member in self._members.alive("follower")}
        for place in placement.places:
            chain, member = self._of(place.shard), followers.get(place.shard)
            due = now_s - chain.changed_s >= AGAIN_S
            if chain.follower is None and member is not None and place.shard not in away and due:
                chain.changed_s = now_s
                chain.epoch += 1
                chain.follower = member.incarnation
                yield AttachFollower(place.shard, chain.epoch, member.address, next_epoch())

    def is_current(self, action: AttachFollower | DetachFollower) -> bool:
        """Whether this action is still valid."""
        return self._of(action.shard).epoch == action.epoch and self._members.alive_shard(action.shard)

    def leader_reported(self, shard: int, epoch: int, followed: bool, unfollowed: str) -> Iterable[Action]:
        """Process a leader's report on its follower."""
        chain = self._of(shard)
        if epoch != chain.epoch or chain.follower is None:
            return
        member = self._members.find("follower", shard, chain.follower)
        if followed and not chain.whole and member is not None:
            chain.whole = True
            member.state = "following"
            yield LogEvent("followed", {"shard": shard, "name": member.name})
        elif unfollowed:
            yield LogEvent("unfollowed", {"shard": shard, "reason": unfollowed})
            yield from self._alone(shard)

    def _alone(self, shard: int) -> Iterable[Action]:
        chain = self._of(shard)
        follower = self._members.find("follower", shard, chain.follower) if chain.follower is not None else None
        if follower is not None:
            follower.state = "waiting"
        chain.epoch += 1
        chain.follower, chain.whole = None, False
        yield DetachFollower(shard, chain.epoch)

    def follower_gone(self, member: Member) -> Iterable[Action]:
        """Detach a follower that has ended."""
        if self._of(member.number).follower == member.incarnation:
            yield from self._alone(member.number)

    def detach_all(self) -> Iterable[Action]:
        """Detach all followers: the shards' contents are about to change in ways that are not replicated."""
        for shard, chain in self._chains.items():
            if chain.follower is not None:
                yield from self._alone(shard)

    # -- promotion -----------------------------------------------------------------------------------------

    def promote_follower(self, member: Member, begun: bool, now_s: float) -> tuple[Member | None, bool]:
        """Handle the end of a leader; returns the member promoted to be the shard, if any, and whether it has all data.

        Parameters
        ----------
        begun
            Whether the job has a snapshot set: before that, initial values are pushed again.
        """
        follower = next((one for one in self._members.alive("follower") if one.number == member.number), None)
        if follower is None and member.number not in self._chains:
            return None, False
        chain = self._of(member.number)
        kept = begun and chain.whole and follower is not None and chain.follower == follower.incarnation
        chain.epoch += 1
        chain.follower, chain.whole, chain.promoted = None, False, None
        if follower is None:
            return None, False
        self._members.promote(follower)
        follower.last_beat_s = max(follower.last_beat_s, now_s)  # the last copy of the shard gets one more lease
        if kept:
            chain.promoted = follower.incarnation
            self.promotions += 1
        return follower, kept

    def promotes(self, member: Member) -> bool:
        """Whether this shard is a promoted follower, in sync with its failed leader, that is not in service yet."""
        return self._of(member.number).promoted == member.incarnation

    def promotion_done(self, shard: int) -> None:
        """Record that the shard is in service again."""
        self._of(shard).promoted = None

    # -- coordinator failover ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Complete state, JSON-serializable."""
        return {"promotions": self.promotions, "chains": {n: _kept(chain) for n, chain in self._chains.items()}}

    def restore(self, state: Mapping[str, Any]) -> Iterable[Action]:
        """Restore the state, after the members; returns actions that leaders may not have received yet."""
        self.promotions = state["promotions"]
        self._chains = {int(number): ShardReplication(**fields) for number, fields in state["chains"].items()}
        for shard, chain in self._chains.items():
            if not chain.whole and chain.promoted is None:
                yield from self._alone(shard)


def _kept(chain: ShardReplication) -> dict[str, Any]:
    fields = asdict(chain)
    del fields["changed_s"]  # it is only valid on this coordinator's clock
    return fields
