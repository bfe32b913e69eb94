"""Recovery of unavailable shards. No clock, no socket.

When a shard fails, what was pushed into it since the newest snapshot set is lost. The job waits for another process to
replace it. The replacement gets the same segments and a new incarnation, and loads the set. It receives the fenced
incarnations and the membership, and only then enters the placement. Commands meant for all shards are postponed
meanwhile, in order, until all shards are available. Before the first set, the initial values are pushed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dbelief.core.placement import ShardPlacement

from ..core.effects import (
    Action,
    AssignShards,
    Export,
    MakeReady,
    RecoverShard,
    RollBack,
    RunProgram,
    SetMembership,
    TakeSnapshot,
)
from ..core.members import Member, Members
from ..core.progress import Best
from ..scheduling.training import Training
from .initialization import Initialization


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
    rollback_set
        The set that all shards of a batch method must restore, since one was unavailable; None: their states are
        consistent.
    owners
        Incarnation that owns each shard number's segments.
    back
        Shards that were recovered, counted by this object.
    """

    def __init__(self, opening: Initialization, members: Members, training: Training, set_id: str | None) -> None:
        self.unavailable: set[int] = set()
        self.set_id = set_id
        self.best: Best | None = None
        self.rollback_set: str | None = None
        self._opening = opening
        self._members = members
        self._training = training
        self.owners: dict[int, int] = {}
        self.back = 0
        self._postponed: list[Action] = []
        self._coming: dict[int, tuple[int, int]] = {}  # by shard: epoch and incarnation of the recovery in progress

    def begin(self) -> None:
        """Record the incarnations of the joined shards as owners of their segments."""
        self.owners = {member.number: member.incarnation for member in self._members.alive("shard")}

    def restore(
        self,
        set_id: str | None,
        best: Mapping[str, Any] | None,
        holders: Mapping[str, int],
        back_to: str | None,
        promotes: Callable[[Member], bool] = lambda _: False,
    ) -> None:
        """Restore the state from a previous coordinator, after the members.

        `promotes`: whether a shard is a promoted follower with all acknowledged data that is not in service yet.
        """
        self.set_id, self.best = set_id, Best(**best) if best else None
        self.owners = {int(number): incarnation for number, incarnation in holders.items()}
        living = {member.number: member.incarnation for member in self._members.alive("shard")}
        self.unavailable = {number for number, life in self.owners.items() if living.get(number) != life}
        self.rollback_set = back_to
        kept = {member.number for member in self._members.alive("shard") if promotes(member)}
        if self.unavailable - kept or back_to:
            self._go_back()

    def _go_back(self) -> None:
        """Start a rollback for a batch method, whose shards now hold different iterations; not before the first set."""
        if self._training.batch is not None and self.set_id is not None:
            self.rollback_set = self.rollback_set or self.set_id
            self._training.suspend()

    def rolled_back(self, set_id: str) -> bool:
        """Record that all shards restored this set; True if it is the required one and all shards are available."""
        if set_id != self.rollback_set or self.unavailable:
            return False
        self.rollback_set = None
        self._training.lost_since(self.best)
        return True

    def set_taken(self, set_id: str) -> None:
        """Record a complete set: shards that fail from now on are recovered from it."""
        self.set_id = set_id
        self.best = self._training.progress.best
        if self.rollback_set is not None:  # it was written before the failure: roll back to it
            self.rollback_set = set_id

    def is_away(self, place: ShardPlacement) -> bool:
        """Whether the incarnation at this place is known to have ended."""
        epoch, incarnation = self._coming.get(place.shard, (-1, 0))
        if epoch == place.shard_epoch:
            return self._members.find("shard", place.shard, incarnation) is None
        placement = self._opening.placement
        later = placement is not None and any(
            now.shard == place.shard and now.shard_epoch > place.shard_epoch for now in placement.places
        )
        return later or place.shard in self.unavailable

    def gone(self, number: int, kept: bool = False) -> None:
        """Record the failure of a shard that held segments; `kept`: its follower has all acknowledged data."""
        self.unavailable.add(number)
        if kept:
            return
        if self.set_id is None:
            self._opening.require_reinitialization()
        self._training.lost_since(self.best)
        self._go_back()

    def recover(self, member: Member, shard_epoch: int, promoted: bool = False) -> RecoverShard:
        """Command that recovers a shard in this process; `promoted`: it is the shard's in-sync follower."""
        placement = self._opening.placement
        assert placement is not None
        old = next(place for place in placement.places if place.shard == member.number)
        self.unavailable.add(member.number)
        return self.admit(member, replace(old, address=member.address, shard_epoch=shard_epoch), promoted)

    def admit(self, member: Member, place: ShardPlacement, promoted: bool = False) -> RecoverShard:
        """Command that makes this process the shard at a place; `promoted` as in `recover`."""
        self._coming[place.shard] = place.shard_epoch, member.incarnation
        return RecoverShard(
            place,
            member.incarnation,
            self.set_id,
            tuple(sorted(self._members.dead)),
            tuple(sorted(self._members.settled)),
            self._training.membership(),
            promoted,
        )

    def revived(self, revive: RecoverShard, set_id: str | None) -> list[Action] | None:
        """Record that a shard is loaded from this set; returns the actions now due, None if it has failed again."""
        if set_id != revive.set_id:  # the requested set is damaged
            if self.set_id == revive.set_id:
                self.set_id = set_id
                self.rollback_set = set_id if self.rollback_set else None
            self.best = None
            self._training.lost_since(None)
        place = revive.place
        if self._members.find("shard", place.shard, revive.incarnation) is None:
            return None
        self._opening.replace(place)
        self.owners[place.shard] = revive.incarnation
        self.unavailable.discard(place.shard)
        if revive.promoted:
            return self._resume_postponed()
        self.back += 1
        return [*self._resume_postponed(), *self._training.shard_back()]

    def removed(self, number: int) -> None:
        """Remove a shard that has no place any more."""
        self.unavailable.discard(number)
        self.owners.pop(number, None)

    def postpone(self, action: Action) -> list[Action]:
        """Keep an action that did not reach all shards; returns actions due now, as all may be available already."""
        if self.set_id is None and isinstance(action, TakeSnapshot | MakeReady):
            self._training.give_up_set()  # the initial values are incomplete again
            return []
        if self.rollback_set is not None and isinstance(action, TakeSnapshot):
            return self._resume_postponed()  # dropped: a set that mixes two iterations would be useless
        asked_again = isinstance(action, Export | RollBack) or (isinstance(action, RunProgram) and self.rollback_set)
        if not asked_again:
            self._postponed.append(action)
        return self._resume_postponed()

    def _resume_postponed(self) -> list[Action]:
        if self.unavailable:
            return []
        kept, self._postponed = self._postponed, []
        return [self._renewed(action) for action in kept]

    def _renewed(self, action: Action) -> Action:
        """The same action, rebuilt from the current state."""
        renew: dict[type, Callable[[], Action | None]] = {
            AssignShards: lambda: AssignShards(self._opening.placement) if self._opening.placement else None,
            SetMembership: self._training.membership,
        }
        return renew.get(type(action), lambda: action)() or action
