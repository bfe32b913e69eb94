"""Shards that are away, and how they come back. No clock, no socket.

A dead shard takes along what was pushed into it since the newest snapshot set. The job waits for another process in
its place, which is given the same segments and a life of its own, loads the set, is told whom to refuse and who takes
part, and only then is named in the placement. What all shards were to be told meanwhile is kept, in order, until all
are there. Before there is any set, initial values are pushed again.
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
    """The shards of one job that are away.

    Parameters
    ----------
    set_id
        The set that the job goes on from, where there is one.

    Attributes
    ----------
    away
        Numbers of the shards that are dead, or alive again and not loaded yet.
    set_id, best
        The newest complete set, and the best evaluation whose parameters it holds whole.
    back_to
        The set that all shards of a batch method are to hold again, since one was away; None: they are of one time.
    holders
        The life that each shard number was given its segments in.
    back
        Shards that came back, as far as this object has seen.
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
        self._coming: dict[int, tuple[int, int]] = {}  # by shard: epoch and life that it is being brought back in

    def begin(self) -> None:
        """The shards that have joined are given segments."""
        self.owners = {member.number: member.incarnation for member in self._members.alive("shard")}

    def restore(
        self,
        set_id: str | None,
        best: Mapping[str, Any] | None,
        holders: Mapping[str, int],
        back_to: str | None,
        promotes: Callable[[Member], bool] = lambda _: False,
    ) -> None:
        """Take over from another coordinator, after the members.

        `promotes`: whether a shard has all that was acknowledged, and is only not served yet.
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
        """Of a batch method, what the shards hold is of different iterations now; before the first set it is not."""
        if self._training.batch is not None and self.set_id is not None:
            self.rollback_set = self.rollback_set or self.set_id
            self._training.suspend()

    def rolled_back(self, set_id: str) -> bool:
        """All shards hold this set again; whether it is the one that was wanted, and all are there."""
        if set_id != self.rollback_set or self.unavailable:
            return False
        self.rollback_set = None
        self._training.lost_since(self.best)
        return True

    def set_taken(self, set_id: str) -> None:
        """A set is complete: what dies from now on comes back from it."""
        self.set_id = set_id
        self.best = self._training.progress.best
        if self.rollback_set is not None:  # it was written before the death that is to be undone
            self.rollback_set = set_id

    def is_away(self, place: ShardPlacement) -> bool:
        """Whether the life at this place is known to be over."""
        epoch, incarnation = self._coming.get(place.shard, (-1, 0))
        if epoch == place.shard_epoch:
            return self._members.find("shard", place.shard, incarnation) is None
        placement = self._opening.placement
        later = placement is not None and any(
            now.shard == place.shard and now.shard_epoch > place.shard_epoch for now in placement.places
        )
        return later or place.shard in self.unavailable

    def gone(self, number: int, kept: bool = False) -> None:
        """A shard that held segments is dead; `kept`: another process has all that was acknowledged."""
        self.unavailable.add(number)
        if kept:
            return
        if self.set_id is None:
            self._opening.require_reinitialization()
        self._training.lost_since(self.best)
        self._go_back()

    def recover(self, member: Member, shard_epoch: int, promoted: bool = False) -> RecoverShard:
        """What brings a shard back in this process; `promoted`: which followed it, and has all it had."""
        placement = self._opening.placement
        assert placement is not None
        old = next(place for place in placement.places if place.shard == member.number)
        self.unavailable.add(member.number)
        return self.admit(member, replace(old, address=member.address, shard_epoch=shard_epoch), promoted)

    def admit(self, member: Member, place: ShardPlacement, promoted: bool = False) -> RecoverShard:
        """What lets this process be the shard at a place; `promoted` as in `revive`."""
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
        """A shard is loaded from this set; what all are to be told now. None where it has died again meanwhile."""
        if set_id != revive.set_id:  # that one is damaged
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
        """A shard has no place any more."""
        self.unavailable.discard(number)
        self.owners.pop(number, None)

    def postpone(self, action: Action) -> list[Action]:
        """Keep what could not be told to all shards; what is to be told at once, for they may be back already."""
        if self.set_id is None and isinstance(action, TakeSnapshot | MakeReady):
            self._training.give_up_set()  # the initial values are not whole any more
            return []
        if self.rollback_set is not None and isinstance(action, TakeSnapshot):
            return self._resume_postponed()  # given up: a set of two different iterations would be of no use
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
        """The same, as it would be asked for now."""
        renew: dict[type, Callable[[], Action | None]] = {
            AssignShards: lambda: AssignShards(self._opening.placement) if self._opening.placement else None,
            SetMembership: self._training.membership,
        }
        return renew.get(type(action), lambda: action)() or action
