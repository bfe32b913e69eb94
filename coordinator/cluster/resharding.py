"""Resharding of a job in training onto more or fewer shards. No clock, no socket.

    request for N --> the shards below N join, and get places without segments --> segments migrate, in batches
    --> shards from N on, which hold nothing by then, lose their places and exit

The next step follows from the placement, the members and N alone. So a new request may replace one in progress, and
another coordinator needs to know only N.

A migration is complete when the placement contains it, and that is persisted before it is published. Until then both
shards, if alive, can be reset to the old ownership; from then on they get the new one. If a shard fails that has a
place and segments, the job waits for its replacement, which loads the newest snapshot set; nothing migrates meanwhile.
A failed shard without segments is simply removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dbelief.core.placement import Placement, ShardPlacement
from dbelief.errors import Rejected
from dbelief.job import Job

from ..core.effects import Action, DecommissionShard, LogEvent, MigrateSegments, RecoverShard
from ..core.members import Member, Members
from ..core.states import State
from .initialization import Initialization
from .rebalance import add_shard, apply_migration, plan_migrations, remove_shard
from .recovery import Recovery

RETRY_S = 2.0
"""Seconds before the next attempt after a failed migration; clients blocked on its segments proceed meanwhile."""


class Resharding:
    """The number of shards of one job.

    Parameters
    ----------
    next_epoch
        Returns a shard epoch that no incarnation of a shard has had.

    Attributes
    ----------
    wanted
        Requested number of shards, numbered from 0.
    running
        Whether resharding is in progress: shards lack places or their shares, or surplus shards have places.
    segments, longest_s
        Segments migrated by this object; longest time in seconds that one migration's segments were unavailable.
    """

    def __init__(
        self,
        job: Job,
        initialization: Initialization,
        members: Members,
        recovery: Recovery,
        next_epoch: Callable[[], int],
    ) -> None:
        self.wanted = job.shards
        self.running = False
        self.segments = 0
        self.longest_s = 0.0
        self._job = job
        self._initialization = initialization
        self._members = members
        self._recovery = recovery
        self._next_epoch = next_epoch
        self._handled: set[int] = set()  # incarnations without a place that are being admitted or decommissioned
        self._under_way: MigrateSegments | None = None  # until both shards have confirmed their ownership
        self._due = False  # the migration is still to be run
        self._retry_s = 0.0
        self._began_s = 0.0
        self._from = job.shards
        self._totals = {"segments": 0, "bytes": 0, "longest_s": 0.0}

    @property
    def _placement(self) -> Placement:
        assert self._initialization.placement is not None
        return self._initialization.placement

    # -- requests ----------------------------------------------------------------------------------------

    def request(self, shards: int, state: State, now_s: float) -> list[Action]:
        """Set the requested number of shards, replacing any earlier request.

        Raises
        ------
        Rejected
            The job is not training, is recorded, or cannot be split over this number.
        """
        name = self._job.name
        if shards < 1:
            raise Rejected(f"job {name} needs at least one shard: `dbelief stop` ends it")
        if state is not State.READY:
            raise Rejected(f"job {name} is {state.value}: the number of shards can change only in training (ready)")
        if self._job.record:
            raise Rejected(f"job {name} is recorded: the record of a migrated segment would be split over two shards")
        if shards > len(self._placement.spans):
            raise Rejected(f"job {name} has {len(self._placement.spans)} segments, and no use for {shards} shards")
        if shards == self.wanted:
            return []
        if not self.running:
            self._began_s, self._from = now_s, self.wanted
            self._totals = {"segments": 0, "bytes": 0, "longest_s": 0.0}
        actions: list[Action] = [LogEvent("scaling", {"from": self.wanted, "to": shards})]
        self.wanted, self.running = shards, True
        self._retry_s = now_s
        self._renew()
        return actions

    def waiting_for(self) -> str:
        """What resharding waits for; "" for nothing."""
        placed = self._members.needed & set(range(self.wanted))
        return f"shards ({len(placed)} of {self.wanted} have a place)" if len(placed) < self.wanted else ""

    def _renew(self, placement: Placement | None = None) -> None:
        """Install a placement, and update which shard numbers may join and which must be present."""
        self._initialization.placement = placement or self._placement
        self._members.needed = {place.shard for place in self._placement.places}
        self._members.shards = self._members.needed | set(range(self.wanted))

    # -- progress ----------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[Action]:
        """Actions that are due now, while the job trains."""
        if not self.running:
            return self._admit_members()
        idle = self._under_way is None
        for place in self._placement.places if idle else ():
            if place.shard >= self.wanted and not place.count:
                self._remove(place.shard)
        actions = self._admit_members()
        if not idle or self.waiting_for() or now_s < self._retry_s:
            return actions
        if self._recovery.unavailable or self._recovery.rollback_set is not None:
            return actions
        self._under_way = next(iter(plan_migrations(self._placement, self.wanted)), None)
        if self._under_way is not None:
            self._due = True
            return [*actions, self._under_way]
        if self._members.needed == set(range(self.wanted)):
            self.running = False
            seconds = round(now_s - self._began_s, 3)
            about = {"from": self._from, "to": self.wanted, "seconds": seconds}
            actions.append(LogEvent("scaled", {**about, **self._totals}))
        return actions

    def _remove(self, shard: int) -> None:
        self._renew(remove_shard(self._placement, shard))
        self._recovery.removed(shard)

    def _admit_members(self) -> list[Action]:
        """Admit members that joined and have no place, and decommission those that no place is left for."""
        actions: list[Action] = []
        for member in self._members.alive("shard", "follower"):
            waits = member.kind == "follower" and member.number < self.wanted
            if waits or member.number in self._members.needed or member.incarnation in self._handled:
                continue
            self._handled.add(member.incarnation)
            if member.number < self.wanted:
                place = ShardPlacement(
                    member.number, member.address, self._next_epoch(), (), self._initialization.run_id
                )
                actions.append(self._recovery.admit(member, place))
            else:
                actions.append(DecommissionShard(member.number, member.incarnation, member.address))
        return actions

    # -- outcomes ---------------------------------------------------------------------------------------

    def is_new(self, place: ShardPlacement) -> bool:
        """Whether this place is not part of the placement yet."""
        return place.shard not in self._members.needed

    def shard_admitted(self, action: RecoverShard) -> bool:
        """Add a new shard that is ready to receive segments; False if it has failed meanwhile."""
        self._handled.discard(action.incarnation)
        if self._members.find("shard", action.place.shard, action.incarnation) is None:
            return False
        self._renew(add_shard(self._placement, action.place))
        self._recovery.owners[action.place.shard] = action.incarnation
        return True

    def due(self, move: MigrateSegments) -> bool:
        """Whether a migration is still to be run: neither done nor failed, and both shards alive."""
        return self._due and move == self._under_way

    def segments_migrated(self, move: MigrateSegments, seconds: float, sent: int) -> bool:
        """Record a completed migration in the placement; False if one of the two shards has failed meanwhile."""
        if not self.due(move):
            return False
        self._due = False
        self._renew(apply_migration(self._placement, move))
        self.segments += len(move.segments)
        self.longest_s = max(self.longest_s, seconds)
        account = self._totals
        account["segments"] += len(move.segments)
        account["bytes"] += sent
        account["longest_s"] = round(max(account["longest_s"], seconds), 4)
        return True

    def migration_failed(self, move: MigrateSegments, now_s: float) -> None:
        """Record a failed migration; the placement is unchanged."""
        if self.due(move):
            self._due = False
            self._retry_s = now_s + RETRY_S

    def ownership_confirmed(self, move: MigrateSegments) -> None:
        """Record that both shards, if alive, have their current ownership: the next migration may start."""
        if move == self._under_way:
            self._under_way = None

    def shard_lost(self, member: Member) -> bool:
        """Handle the end of a shard's incarnation; True if it held nothing, so that the job continues without it."""
        move = self._under_way
        if move is not None and member.number in (move.sender, move.receiver):
            self._due = False
        place = next((place for place in self._placement.places if place.shard == member.number), None)
        if place is None:
            return True
        if place.count or not self.running:
            return False
        self._remove(place.shard)
        return True

    # -- coordinator failover ----------------------------------------------------------------------------

    def state(self, now_s: float) -> dict[str, Any]:
        """Complete state as of now, JSON-serializable."""
        seconds = round(now_s - self._began_s, 3) if self.running else 0.0
        about = {"wanted": self.wanted, "running": self.running, "from": self._from, "seconds": seconds}
        return {**about, "account": dict(self._totals)}

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Restore the state from a previous coordinator, after the placement and the members."""
        self.wanted, self.running, self._from = state["wanted"], state["running"], state["from"]
        self._totals = dict(state["account"])
        self._began_s = now_s - state["seconds"]
        self._renew()
