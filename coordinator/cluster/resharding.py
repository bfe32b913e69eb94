"""How a job that trains comes to hold its parameters on more shards, or on fewer. No clock, no socket.

    a wish for N --> the shards below N join, and take places without segments --> segments move, some at a time
    --> shards from N on, which hold nothing by then, lose their places and end

What is next follows from the placement, the members and N alone. So another wish may replace one that is under way, and
another coordinator needs to know no more than N.

A move is over when the placement has it, and that is written down before anybody hears of it: until then both shards,
as far as they live, can be told what they held before, and from then on what they hold now. A shard that dies with a
place and segments is waited for, and comes back from the newest snapshot set; nothing moves meanwhile. One that holds
nothing is simply no member any more.
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

AGAIN_S = 2.0
"""How long a move that failed is let be: those who waited for its segments come on meanwhile."""


class Resharding:
    """The number of shards of one job.

    Parameters
    ----------
    next_epoch
        Gives a shard epoch that no life of a shard had.

    Attributes
    ----------
    wanted
        Shards that there are to be, numbered from 0.
    running
        Not all of them have their places and their shares, or others have places.
    segments, longest_s
        Moved by this object so far; for how long nobody served the segments of one move, at most.
    """

    def __init__(
        self, job: Job, opening: Initialization, members: Members, recovery: Recovery, next_epoch: Callable[[], int]
    ) -> None:
        self.wanted = job.shards
        self.running = False
        self.segments = 0
        self.longest_s = 0.0
        self._job = job
        self._opening = opening
        self._members = members
        self._recovery = recovery
        self._next_epoch = next_epoch
        self._seen_to: set[int] = set()  # lives without a place that are being brought in, or dismissed
        self._under_way: MigrateSegments | None = None  # until both shards know what they hold
        self._due = False  # it is still to be made
        self._again_s = 0.0
        self._began_s = 0.0
        self._from = job.shards
        self._account = {"segments": 0, "bytes": 0, "longest_s": 0.0}

    @property
    def _placement(self) -> Placement:
        assert self._opening.placement is not None
        return self._opening.placement

    # -- the wish ----------------------------------------------------------------------------------------

    def request(self, shards: int, state: State, now_s: float) -> list[Action]:
        """Somebody wants so many, instead of what was wanted before.

        Raises
        ------
        Refused
            The job does not train, or cannot be held by so many.
        """
        name = self._job.name
        if shards < 1:
            raise Rejected(f"job {name} cannot go on without a shard: `dbelief stop` ends it")
        if state is not State.READY:
            raise Rejected(f"job {name} is {state.value}: while it trains (ready), there can be more or fewer shards")
        if self._job.record:
            raise Rejected(
                f"job {name} is recorded: what a segment's shard has written of it would not be in one place"
            )
        if shards > len(self._placement.spans):
            raise Rejected(f"job {name} has {len(self._placement.spans)} segments, and no use for {shards} shards")
        if shards == self.wanted:
            return []
        if not self.running:
            self._began_s, self._from = now_s, self.wanted
            self._account = {"segments": 0, "bytes": 0, "longest_s": 0.0}
        notes: list[Action] = [LogEvent("scaling", {"from": self.wanted, "to": shards})]
        self.wanted, self.running = shards, True
        self._again_s = now_s
        self._renew()
        return notes

    def waiting_for(self) -> str:
        """Whom it waits for, "" for nobody."""
        there = self._members.needed & set(range(self.wanted))
        return f"shards ({len(there)} of {self.wanted} have a place)" if len(there) < self.wanted else ""

    def _renew(self, placement: Placement | None = None) -> None:
        """Let a placement hold from now on, and say who may have a place, and who must."""
        self._opening.placement = placement or self._placement
        self._members.needed = {place.shard for place in self._placement.places}
        self._members.shards = self._members.needed | set(range(self.wanted))

    # -- moving on ---------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[Action]:
        """What is due now, while the job trains."""
        if not self.running:
            return self._see_to_members()
        idle = self._under_way is None
        for place in [place for place in self._placement.places if idle and self._is_over(place)]:
            self._leave_out(place.shard)
        actions = self._see_to_members()
        if not idle or self.waiting_for() or now_s < self._again_s:
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
            actions.append(LogEvent("scaled", {**about, **self._account}))
        return actions

    def _is_over(self, place: ShardPlacement) -> bool:
        return place.shard >= self.wanted and not place.count

    def _leave_out(self, shard: int) -> None:
        self._renew(remove_shard(self._placement, shard))
        self._recovery.removed(shard)

    def _see_to_members(self) -> list[Action]:
        """Bring in those who joined and have no place, and dismiss those for whom there is none any more."""
        actions: list[Action] = []
        for member in self._members.alive("shard", "follower"):
            waits = member.kind == "follower" and member.number < self.wanted
            if waits or member.number in self._members.needed or member.incarnation in self._seen_to:
                continue
            self._seen_to.add(member.incarnation)
            if member.number < self.wanted:
                place = ShardPlacement(member.number, member.address, self._next_epoch(), (), self._opening.run_id)
                actions.append(self._recovery.admit(member, place))
            else:
                actions.append(DecommissionShard(member.number, member.incarnation, member.address))
        return actions

    # -- what came of it ---------------------------------------------------------------------------------

    def is_new(self, place: ShardPlacement) -> bool:
        """Whether this is a place that the job does not have yet."""
        return place.shard not in self._members.needed

    def shard_admitted(self, revive: RecoverShard) -> bool:
        """A new shard is ready to take segments; False where it has died meanwhile."""
        self._seen_to.discard(revive.incarnation)
        if self._members.find("shard", revive.place.shard, revive.incarnation) is None:
            return False
        self._renew(add_shard(self._placement, revive.place))
        self._recovery.owners[revive.place.shard] = revive.incarnation
        return True

    def due(self, move: MigrateSegments) -> bool:
        """Whether a move that was asked for is still to be made: neither done, nor failed, and both shards live."""
        return self._due and move == self._under_way

    def moved(self, move: MigrateSegments, seconds: float, sent: int) -> bool:
        """The segments are there, and served from now on; False where one of the two has died meanwhile."""
        if not self.due(move):
            return False
        self._due = False
        self._renew(apply_migration(self._placement, move))
        self.segments += len(move.segments)
        self.longest_s = max(self.longest_s, seconds)
        account = self._account
        account["segments"] += len(move.segments)
        account["bytes"] += sent
        account["longest_s"] = round(max(account["longest_s"], seconds), 4)
        return True

    def migration_failed(self, move: MigrateSegments, now_s: float) -> None:
        """It could not be made; all is as before."""
        if self.due(move):
            self._due = False
            self._again_s = now_s + AGAIN_S

    def ownership_confirmed(self, move: MigrateSegments) -> None:
        """Both shards, as far as they live, know what they hold: the next one may begin."""
        if move == self._under_way:
            self._under_way = None

    def shard_lost(self, member: Member) -> bool:
        """A shard's life is over; whether the job goes on without it, for it held nothing."""
        move = self._under_way
        if move is not None and member.number in (move.giver, move.taker):
            self._due = False
        place = next((place for place in self._placement.places if place.shard == member.number), None)
        if place is None:
            return True
        if place.count or not self.running:
            return False
        self._leave_out(place.shard)
        return True

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self, now_s: float) -> dict[str, Any]:
        """All of it, as of now; JSON holds it."""
        seconds = round(now_s - self._began_s, 3) if self.running else 0.0
        about = {"wanted": self.wanted, "running": self.running, "from": self._from, "seconds": seconds}
        return {**about, "account": dict(self._account)}

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Take over from another coordinator, after the placement and the members."""
        self.wanted, self.running, self._from = state["wanted"], state["running"], state["from"]
        self._account = dict(state["account"])
        self._began_s = now_s - state["seconds"]
        self._renew()
