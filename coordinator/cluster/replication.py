"""Who follows which shard, and whether the job may count on it. No clock, no socket.

A follower is another shard process, of the kind "follower", with the number of the shard that it follows. It is
counted on (`whole`) from when its leader says that it has everything, and acknowledges nothing without it; that is
written down. Where the leader dies then, the follower goes on in its place, with all that was ever acknowledged. Where
the follower dies, or they lose each other, the leader acknowledges nothing until it is told that it stands alone, which
is written down before it is told: so a follower that may lack something is never counted on.
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
"""From one try to have a shard followed to the next."""


@dataclass
class ShardReplication:
    """One shard's.

    Attributes
    ----------
    epoch
        One more for every change.
    follower
        The follower's incarnation; None: there is none.
    whole
        Whether it is counted on.
    promoted
        The life that goes on in a dead leader's place and is not served yet; None where there is none.
    changed_s
        When a follower was last asked for, on this coordinator's clock.
    """

    epoch: int = 0
    follower: int | None = None
    whole: bool = False
    promoted: int | None = None
    changed_s: float = -math.inf


class ReplicationManager:
    """All of one job.

    Parameters
    ----------
    replication
        Processes that are to have each segment: 1 or 2.

    Attributes
    ----------
    promotions
        Followers that went on in their leader's place, so far.
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
        """Shards that ought to have a follower to count on, and have none; 0 where none is wanted."""
        if not self._wanted:
            return 0
        return sum(not self._of(member.number).whole for member in self._members.alive("shard"))

    def advance(
        self, placement: Placement | None, away: Collection[int], next_epoch: Callable[[], int], now_s: float
    ) -> Iterable[Action]:
        """Have followers that are there follow their shards; one that was lost at once, after a while.

        `placement`: None while shards are to stand alone.
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
        """Whether this is still wanted."""
        return self._of(action.shard).epoch == action.epoch and self._members.alive_shard(action.shard)

    def leader_reported(self, shard: int, epoch: int, followed: bool, unfollowed: str) -> Iterable[Action]:
        """A leader tells how it stands with its follower."""
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
        """A follower is over."""
        if self._of(member.number).follower == member.incarnation:
            yield from self._alone(member.number)

    def detach_all(self) -> Iterable[Action]:
        """Every shard stands alone: what they hold is about to change as no follower is told."""
        for shard, chain in self._chains.items():
            if chain.follower is not None:
                yield from self._alone(shard)

    # -- a leader dies -------------------------------------------------------------------------------------

    def promote_follower(self, member: Member, begun: bool, now_s: float) -> tuple[Member | None, bool]:
        """A leader is over; who is this shard from now on, if anybody followed it, and whether that one has all of it.

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
        follower.last_beat_s = max(follower.last_beat_s, now_s)  # the last that has it gets one more lease
        if kept:
            chain.promoted = follower.incarnation
            self.promotions += 1
        return follower, kept

    def promotes(self, member: Member) -> bool:
        """Whether this shard is a follower that goes on in its dead leader's place, and is not served yet."""
        return self._of(member.number).promoted == member.incarnation

    def promotion_done(self, shard: int) -> None:
        """The shard is served again."""
        self._of(shard).promoted = None

    # -- another coordinator -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All of it; JSON holds it."""
        return {"promotions": self.promotions, "chains": {n: _kept(chain) for n, chain in self._chains.items()}}

    def restore(self, state: Mapping[str, Any]) -> Iterable[Action]:
        """Take over, after the members; what leaders may not have been told yet."""
        self.promotions = state["promotions"]
        self._chains = {int(number): ShardReplication(**fields) for number, fields in state["chains"].items()}
        for shard, chain in self._chains.items():
            if not chain.whole and chain.promoted is None:
                yield from self._alone(shard)


def _kept(chain: ShardReplication) -> dict[str, Any]:
    fields = asdict(chain)
    del fields["changed_s"]  # another coordinator's clock is another
    return fields
