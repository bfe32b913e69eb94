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
from dataclasses import dataclass
from typing import Any

from dbelief.core.placement import Placement

from ..core.effects import Action, AttachFollower, DetachFollower, LogEvent
from ..core.members import Member, Members

RETRY_S = 1.0
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
        self._links: dict[int, ShardReplication] = {}
        self.promotions = 0

    def _link(self, shard: int) -> ShardReplication:
        return self._links.setdefault(shard, ShardReplication())

    @property
    def unfollowed(self) -> int:
        """Number of shards without an in-sync follower; 0 where no replication is configured."""
        if not self._wanted:
            return 0
        return sum(not self._link(member.number).whole for member in self._members.alive("shard"))

    def advance(
        self, placement: Placement | None, unavailable: Collection[int], next_epoch: Callable[[], int], now_s: float
    ) -> Iterable[Action]:
        """Attach available followers to their shards; after a lost follower, at most one attempt per `RETRY_S`.

        `placement`: None while shards run without followers.
        """
        if placement is None or not self._wanted:
            return
        followers = {member.number: member for member in self._members.alive("follower")}
        for place in placement.places:
            link, member = self._link(place.shard), followers.get(place.shard)
            due = now_s - link.changed_s >= RETRY_S
            if link.follower is None and member is not None and place.shard not in unavailable and due:
                link.changed_s = now_s
                link.epoch += 1
                link.follower = member.incarnation
                yield AttachFollower(place.shard, link.epoch, member.address, next_epoch())

    def is_current(self, action: AttachFollower | DetachFollower) -> bool:
        """Whether this action is still valid."""
        alive = any(member.number == action.shard for member in self._members.alive("shard"))
        return alive and self._link(action.shard).epoch == action.epoch

    def leader_reported(self, shard: int, epoch: int, followed: bool, unfollowed: str) -> Iterable[Action]:
        """Process a leader's report on its follower."""
        link = self._link(shard)
        if epoch != link.epoch or link.follower is None:
            return
        member = self._members.find("follower", shard, link.follower)
        if followed and not link.whole and member is not None:
            link.whole = True
            member.state = "following"
            yield LogEvent("followed", {"shard": shard, "name": member.name})
        elif unfollowed:
            yield LogEvent("unfollowed", {"shard": shard, "reason": unfollowed})
            yield from self._detach(shard)

    def _detach(self, shard: int) -> Iterable[Action]:
        link = self._link(shard)
        follower = self._members.find("follower", shard, link.follower) if link.follower is not None else None
        if follower is not None:
            follower.state = "waiting"
        link.epoch += 1
        link.follower, link.whole = None, False
        yield DetachFollower(shard, link.epoch)

    def follower_lost(self, member: Member) -> Iterable[Action]:
        """Detach a follower that has ended."""
        if self._link(member.number).follower == member.incarnation:
            yield from self._detach(member.number)

    def detach_all(self) -> Iterable[Action]:
        """Detach all followers: the shards' contents are about to change in ways that are not replicated."""
        for shard, link in self._links.items():
            if link.follower is not None:
                yield from self._detach(shard)

    # -- promotion -----------------------------------------------------------------------------------------

    def leader_lost(self, shard: int, follower: Member | None, has_set: bool) -> bool:
        """End the link of a failed leader; returns whether its follower is in sync, to be promoted with all data.

        Parameters
        ----------
        has_set
            Whether the job has a snapshot set: before that, initial values are pushed again.
        """
        if follower is None and shard not in self._links:
            return False
        link = self._link(shard)
        in_sync = has_set and link.whole and follower is not None and link.follower == follower.incarnation
        link.epoch += 1
        link.promoted = link.follower if in_sync else None
        link.follower, link.whole = None, False
        self.promotions += in_sync
        return in_sync

    def promotes(self, member: Member) -> bool:
        """Whether this shard is a promoted follower, in sync with its failed leader, that is not in service yet."""
        link = self._links.get(member.number)
        return link is not None and link.promoted == member.incarnation

    def promotion_done(self, shard: int) -> None:
        """Record that the shard is in service again."""
        self._link(shard).promoted = None

    # -- coordinator failover ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Complete state, JSON-serializable."""
        links = {number: dict(vars(link)) for number, link in self._links.items()}
        for fields in links.values():
            del fields["changed_s"]  # it is only valid on this coordinator's clock
        return {"promotions": self.promotions, "chains": links}

    def restore(self, state: Mapping[str, Any]) -> Iterable[Action]:
        """Restore the state, after the members; returns actions that leaders may not have received yet."""
        self.promotions = state["promotions"]
        self._links = {int(number): ShardReplication(**fields) for number, fields in state["chains"].items()}
        for shard, link in self._links.items():
            if not link.whole and link.promoted is None:
                yield from self._detach(shard)
