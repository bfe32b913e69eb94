"""Recovery of unavailable shards. No clock, no socket.

When a shard fails, what was pushed into it since the newest snapshot set is lost. The job waits for another process to
replace it. The replacement gets the same segments and a new incarnation, and loads the set. It receives the fenced
incarnations and the membership, and only then enters the placement. Commands meant for all shards are postponed
meanwhile, in order, until all shards are available. Before the first set, the initial values are pushed again.

A shard with a follower is replaced by it: the follower is promoted. One in sync loads no set, as nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dbelief.core.placement import ShardPlacement

from ..core import effects
from ..core.members import Member, Members
from ..core.progress import Best
from ..scheduling.training import Training
from .initialization import Initialization
from .replication import ReplicationManager

_OF_ONE_ITERATION: tuple[type[effects.Action], ...] = (effects.RunProgram, effects.TakeSnapshot)
"""Actions for which all shards must hold the same iteration of a batch method."""


class Recovery:
    """Recovery state of one job's shards.

    Parameters
    ----------
    set_id
        The set that the job resumes from; None: the job starts anew.

    Attributes
    ----------
    unavailable
        Numbers of the shards that have failed, or have been restarted and are not loaded yet.
    set_id, best
        The newest complete set, and the best evaluation whose parameters it holds completely.
    loading
        Whether the job resumes from a set that not all shards have loaded yet.
    rollback_set
        The set that all shards of a batch method must restore, since one was unavailable; None: their states are
        consistent.
    owners
        Incarnation that owns each shard number's segments.
    back
        Shards that were recovered, counted by this object.
    """

    def __init__(
        self,
        initialization: Initialization,
        members: Members,
        training: Training,
        replication: ReplicationManager,
        set_id: str | None,
    ) -> None:
        self.unavailable: set[int] = set()
        self.set_id = set_id
        self.loading = set_id is not None
        self.best: Best | None = None
        self.rollback_set: str | None = None
        self._initialization = initialization
        self._members = members
        self._training = training
        self._replication = replication
        self.owners: dict[int, int] = {}
        self.recovered = 0
        self._postponed: list[effects.Action] = []
        self._recovering: dict[int, tuple[int, int]] = {}  # by shard: epoch and incarnation of the recovery in progress

    def begin(self) -> None:
        """Record the incarnations of the joined shards as owners of their segments."""
        self.owners = {member.number: member.incarnation for member in self._members.alive("shard")}

    def restore(
        self,
        set_id: str | None,
        best: Mapping[str, Any] | None,
        owners: Mapping[str, int],
        rollback_set: str | None,
    ) -> None:
        """Restore the state from a previous coordinator, after the members and the replication."""
        self.set_id, self.best = set_id, Best(**best) if best else None
        self.owners = {int(number): incarnation for number, incarnation in owners.items()}
        living = {member.number: member.incarnation for member in self._members.alive("shard")}
        self.unavailable = {number for number, incarnation in self.owners.items() if living.get(number) != incarnation}
        self.rollback_set = rollback_set
        promoted = {member.number for member in self._members.alive("shard") if self._replication.promotes(member)}
        if self.unavailable - promoted or rollback_set:
            self._start_rollback()

    def _start_rollback(self) -> None:
        """Start a rollback for a batch method, whose shards now hold different iterations; not before the first set."""
        if self.set_id is not None and self._training.suspend():
            self.rollback_set = self.rollback_set or self.set_id
            # A program or set postponed while only a promotion was pending, before this failure, would run between the
            # shard's recovery and the rollback, on a mixture of two iterations.
            self._postponed = [action for action in self._postponed if not isinstance(action, _OF_ONE_ITERATION)]

    def rolled_back(self, set_id: str) -> bool:
        """Record that all shards restored this set; True if it is the required one and all shards are available."""
        if set_id != self.rollback_set or self.unavailable:
            return False
        self.rollback_set = None
        self._training.vectors_lost(self.best)
        return True

    def set_taken(self, set_id: str) -> None:
        """Record a complete set: shards that fail from now on are recovered from it."""
        self.set_id = set_id
        self.best = self._training.progress.best
        if self.rollback_set is not None:  # it was written before the failure: roll back to it
            self.rollback_set = set_id

    def is_unavailable(self, place: ShardPlacement) -> bool:
        """Whether the incarnation at this place is known to have ended."""
        epoch, incarnation = self._recovering.get(place.shard, (-1, 0))
        if epoch == place.shard_epoch:
            return self._members.find("shard", place.shard, incarnation) is None
        placement = self._initialization.placement
        later = placement is not None and any(
            now.shard == place.shard and now.shard_epoch > place.shard_epoch for now in placement.places
        )
        return later or place.shard in self.unavailable

    def shard_lost(self, number: int, in_sync: bool = False) -> None:
        """Record the failure of a shard that held segments; `in_sync`: its follower has all acknowledged data."""
        self.unavailable.add(number)
        if in_sync:
            return
        if self.set_id is None:
            self._initialization.require_reinitialization()
        self._training.vectors_lost(self.best)
        self._start_rollback()

    def promote_follower(self, leader: Member, now_s: float) -> Member | None:
        """Record the failure of a shard that held segments; the follower that is promoted to be the shard, if any."""
        follower = next((one for one in self._members.alive("follower") if one.number == leader.number), None)
        # Before the first set the initial values are pushed again, and in a resume the set is loaded first: until then
        # a follower has nothing to be promoted with.
        has_set = self.set_id is not None and not self.loading
        in_sync = self._replication.leader_lost(leader.number, follower, has_set)
        if follower is not None:
            self._members.promote(follower)
            follower.last_beat_s = max(follower.last_beat_s, now_s)  # the last copy of the shard gets one more lease
        self.shard_lost(leader.number, in_sync)
        return follower

    def recover(self, member: Member, shard_epoch: int) -> effects.RecoverShard:
        """Command that recovers a shard in this process, which may be its promoted follower."""
        placement = self._initialization.placement
        assert placement is not None
        old = next(place for place in placement.places if place.shard == member.number)
        self.unavailable.add(member.number)
        return self.admit(member, replace(old, address=member.address, shard_epoch=shard_epoch))

    def admit(self, member: Member, place: ShardPlacement) -> effects.RecoverShard:
        """Command that makes this process the shard at a place."""
        self._recovering[place.shard] = place.shard_epoch, member.incarnation
        return effects.RecoverShard(
            place,
            member.incarnation,
            self.set_id,
            tuple(sorted(self._members.dead)),
            tuple(sorted(self._members.settled)),
            self._training.policy.membership(),
            self._replication.promotes(member),
        )

    def with_newest_set(self, action: effects.RecoverShard) -> effects.RecoverShard:
        """The same command with the set that is the newest now, where it loads one.

        A set that was under way when the shard failed may have become complete while the command was queued. The set
        before it may be removed by then; and what it lacks of ended pushers is not counted any more (`Leases.ended`).
        """
        return action if action.set_id is None else replace(action, set_id=self.set_id)

    def shard_recovered(self, action: effects.RecoverShard, set_id: str | None) -> list[effects.Action] | None:
        """Record that a shard is loaded from this set; returns the actions now due, None if it has failed again."""
        if set_id != action.set_id:  # the requested set is damaged
            if self.set_id == action.set_id:
                self.set_id = set_id
                self.rollback_set = set_id if self.rollback_set else None
            self.best = None
            self._training.vectors_lost(None)
        place = action.place
        if self._members.find("shard", place.shard, action.incarnation) is None:
            return None
        self._initialization.replace(place)
        self.owners[place.shard] = action.incarnation
        self._replication.promotion_done(place.shard)
        self.unavailable.discard(place.shard)
        if action.promoted:
            return self._resume_postponed()
        # The failed incarnation may have gone on running, and may have stored evaluations since its failure.
        self._training.vectors_lost(self.best)
        self.recovered += 1
        return [*self._resume_postponed(), *self._training.policy.shard_recovered()]

    def removed(self, number: int) -> None:
        """Remove a shard that has no place any more."""
        self.unavailable.discard(number)
        self.owners.pop(number, None)

    def postpone(self, action: effects.Action) -> list[effects.Action]:
        """Keep an action that did not reach all shards; returns actions due now, as all may be available already."""
        if self.set_id is None and isinstance(action, effects.TakeSnapshot | effects.MakeReady):
            self._training.abort_set()  # the initial values are incomplete again
            return []
        dropped: tuple[type[effects.Action], ...] = (effects.RollBack,)  # it is requested again
        if self.rollback_set is not None:  # programs are too, and a set that mixes two iterations would be useless
            dropped += _OF_ONE_ITERATION
            if isinstance(action, effects.TakeSnapshot):
                self._training.abort_set()  # it may have been begun again, under another id, after the rollback was
        if not isinstance(action, dropped):
            self._postponed.append(action)
        return self._resume_postponed()

    def _resume_postponed(self) -> list[effects.Action]:
        if self.unavailable:
            return []
        postponed, self._postponed = self._postponed, []
        return [self._renewed(action) for action in postponed]

    def _renewed(self, action: effects.Action) -> effects.Action:
        """The same action, rebuilt from the current state."""
        if isinstance(action, effects.AssignShards) and self._initialization.placement is not None:
            return effects.AssignShards(self._initialization.placement)
        return (isinstance(action, effects.SetMembership) and self._training.policy.membership()) or action
