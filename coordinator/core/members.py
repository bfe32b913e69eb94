"""Members of the job: shards, replicas and clients, each alive as long as it sends heartbeats. No clock, no socket.

Every incarnation of every member gets a unique number. By it a shard distinguishes a replica from an earlier
incarnation that may still send. Replica numbers are reused: a restarted replica continues under its old number.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from dbelief.errors import ResourceExhausted
from dbelief.job.document.section import MOST_MEMBERS

from .tracked import TrackedDict

_JOINS_AS = {"follower": "shard"}
"""Kinds that join as another."""
KINDS = ("shard", "follower", "replica", "client")
_NOT_STORED = frozenset({"last_beat_s", "moved_s", "on_change"})
_JOINED = attrgetter("incarnation")
_AT_WORK = ("training", "evaluating")
_MAX_BACKLOG_S = 60.0
"""Age of a call that delays the removal of silent members; an older one may never be processed."""
_MAX_CHECK_GAP_S = 1.0
"""Maximum time between checks for expired members; a longer gap means that the coordinator did not run (stopped)."""


@dataclass
class Member:
    """One incarnation of one member.

    Attributes
    ----------
    kind
        "shard", "follower" (of the shard of its number), "replica" or "client".
    last_beat_s, moved_s
        On the coordinator's clock: time of the last heartbeat, and of the last progress of its work.
    state
        State for display: "waiting", "training", "evaluating", "left", "died".
    leaves_after
        The snapshot set, by its count, for which a shard that was requested to exit waits; 0: no such request.
    on_change
        Called with the member after a change of any other field but the two times.
    """

    kind: str
    number: int
    incarnation: int
    name: str
    token: int
    address: str = ""
    last_beat_s: float = 0.0
    moved_s: float = 0.0
    state: str = "waiting"
    leaves_after: int = 0
    on_change: Callable[[Member], None] | None = field(default=None, repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, and report a change of its row."""
        changed = name not in _NOT_STORED and self.__dict__.get(name) != value
        super().__setattr__(name, value)
        if changed and (report := self.__dict__.get("on_change")) is not None:
            report(self)

    @property
    def alive(self) -> bool:
        """Whether it has neither left nor died."""
        return self.state not in ("left", "died")

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.number} ({self.name})"

    def row(self) -> dict[str, Any]:
        """All fields for another coordinator; without times, which every heartbeat changes."""
        return {name: self.__dict__[name] for name in _ROW}


_ROW = [one.name for one in fields(Member) if one.name not in _NOT_STORED]


@dataclass
class Members:
    """All members, by kind and number the latest incarnation.

    Each lookup and each change of one member costs the same at any number of members; `alive` and `replicas` cost
    their length after a member has joined or ended.

    Attributes
    ----------
    beat_s
        Heartbeat timeout: a member silent for longer is considered dead.
    shards
        Numbers that shards may have: at first as many as the job plans.
    replication
        Processes for each shard; one more is refused.
    lease_s
        The timeout of a shard or follower, if it is less.
    needed
        Those of the shards without which the job cannot proceed.
    latest
        The latest incarnation of each kind and number, alive or not.
    dead, settled
        Incarnations of pushers that have ended; those of them whose ledgers were read. After a takeover both hold all
        ended incarnations, except that the unsettled ones are in `dead` only: the persisted state does not grow with
        their number.
    unsettled
        Those in `dead` only, each with its number: another one may have that by now.
    unforgotten
        Those of the settled whose ledger rows not all shards have dropped yet.
    """

    beat_s: float
    shards: set[int]
    replication: int = 1
    lease_s: float = math.inf
    incarnations: int = 0
    latest: TrackedDict[tuple[str, int], Member] = field(default_factory=TrackedDict)
    dead: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    unsettled: TrackedDict[int, int] = field(default_factory=TrackedDict)
    unforgotten: TrackedDict[int, bool] = field(default_factory=TrackedDict)
    _checked_s: float | None = None
    _progress_s: float = -math.inf  # since when no member's work could advance
    _living: dict[str, dict[int, Member]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    _by_token: dict[tuple[str, int], Member] = field(default_factory=dict)
    _by_name: dict[tuple[str, str], dict[int, Member]] = field(default_factory=dict)  # and by incarnation
    _sorted: dict[tuple[str, ...], tuple[Member, ...]] = field(default_factory=dict)  # results of `alive`
    _replicas: dict[int, int] | None = None
    # Heaps of (time, incarnation, member): a member's timer is looked at then, and not before.
    _timeouts: list[tuple[float, int, Member]] = field(default_factory=list)
    _stalls: list[tuple[float, int, Member]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.needed = set(self.shards)

    def join(
        self, kind: str, token: int, name: str, address: str, now_s: float, requested_number: int | None = None
    ) -> Member:
        """Add a member; a repeated call with the same token returns the same member.

        `requested_number` is given where it is free. A shard process for which no shard number is
        free becomes a follower, where the job has followers.

        Raises
        ------
        ResourceExhausted
            Where all planned shards are present, or as many others as a job may have.
        """
        joined = self._by_token.get((kind, token))
        if joined is not None:
            return joined
        number = self._free_number(kind, requested_number)
        if number is None and kind == "shard" and (unfollowed := self._unfollowed(address)):
            kind, number = "follower", requested_number if requested_number in unfollowed else unfollowed[0]
        if number is None and kind == "shard":
            raise ResourceExhausted(
                f"all {len(self.shards)} shards of the job have joined; `dbelief scale ps` allows more"
            )
        if number is None:
            raise ResourceExhausted(f"the job has {MOST_MEMBERS} replicas and clients, the maximum")
        self.incarnations += 1
        member = Member(kind, number, self.incarnations, name, token, address, now_s)
        self._add(member, now_s)
        return member

    def _add(self, member: Member, now_s: float) -> None:
        """Add the latest incarnation of its kind and number."""
        self.latest[member.kind, member.number] = member
        member.on_change = self._member_changed
        self._member_changed(member)
        for heap in (self._timeouts, self._stalls):
            heapq.heappush(heap, (now_s, member.incarnation, member))

    def _member_changed(self, member: Member) -> None:
        """Record a change of its row, and whether it is alive now."""
        self.latest.touch((member.kind, member.number))
        living = self._living[member.kind]
        if member.alive == (living.get(member.number) is member):
            return
        joined_as = _JOINS_AS.get(member.kind, member.kind)
        token, name = (joined_as, member.token), (joined_as, member.name)
        if member.alive:
            living[member.number] = self._by_token[token] = member
            self._by_name.setdefault(name, {})[member.incarnation] = member
        else:
            del living[member.number], self._by_token[token], self._by_name[name][member.incarnation]
            if not self._by_name[name]:
                del self._by_name[name]
        self._sorted.clear()
        self._replicas = None

    def _unfollowed(self, address: str) -> list[int]:
        """Numbers of shards that a new follower may follow, those on other hosts than its own first."""
        if self.replication < 2:
            return []
        host = address.rpartition(":")[0]
        free = [m for m in self.alive("shard") if m.number not in self._living["follower"]]
        return [m.number for m in sorted(free, key=lambda m: (m.address.rpartition(":")[0] == host, m.number))]

    def promote(self, follower: Member) -> None:
        """Promote a follower to the shard of its number."""
        del self.latest[follower.kind, follower.number], self._living[follower.kind][follower.number]
        self.latest["shard", follower.number] = follower
        follower.kind = "shard"
        follower.state = "waiting"

    def find_server(self, number: int, incarnation: int) -> Member | None:
        """The living shard of this number, or its follower, where it has this incarnation."""
        return self.find("shard", number, incarnation) or self.find("follower", number, incarnation)

    def _free_number(self, kind: str, requested_number: int | None) -> int | None:
        """The number for a joining member; None where none is free."""
        # Replicas and clients both push, so they share one range of numbers.
        kinds = ("shard",) if kind == "shard" else ("replica", "client")
        taken = set[int]().union(*(self._living[one] for one in kinds))
        numbers = sorted(self.shards) if kind == "shard" else range(MOST_MEMBERS)
        if requested_number is not None and requested_number not in taken and requested_number in numbers:
            return requested_number
        return next((number for number in numbers if number not in taken), None)

    def named(self, kind: str, name: str, token: int) -> Member | None:
        """The earlier incarnation of a process that was restarted."""
        alike = [m for m in self._by_name.get((kind, name), {}).values() if m.token != token]
        return min(alike, key=attrgetter("kind", "number"), default=None)

    def mark_ended(self, member: Member, how: str) -> None:
        """Mark the end of an incarnation: it "left" or "died"."""
        member.state = how
        if member.kind not in ("shard", "follower"):
            self.dead.add(member.incarnation)
            self.unsettled[member.incarnation] = member.number

    def settle(self, incarnation: int) -> None:
        """Record that the ledgers of an incarnation that has ended were read; their rows are to be dropped."""
        self.settled.add(incarnation)
        self.unsettled.pop(incarnation, None)
        self.unforgotten[incarnation] = True

    def find(self, kind: str, number: int, incarnation: int) -> Member | None:
        """This incarnation, where it is alive."""
        member = self._living[kind].get(number)
        return member if member is not None and member.incarnation == incarnation else None

    def find_pusher(self, number: int, incarnation: int) -> Member | None:
        """The living replica or client of this number and incarnation."""
        return self.find("replica", number, incarnation) or self.find("client", number, incarnation)

    # -- timeouts ----------------------------------------------------------------------------------------

    def expired(self, now_s: float, backlog_s: float = 0.0) -> list[Member]:
        """Members whose heartbeat timeout has expired; to be called periodically.

        Cost: that of the timers that are due.

        Parameters
        ----------
        backlog_s
            Time for which the oldest call has waited to be processed: it may be anybody's heartbeat.
        """
        away_s = 0.0 if self._checked_s is None else now_s - self._checked_s
        self._checked_s = now_s
        if away_s > max(_MAX_CHECK_GAP_S, min(self.beat_s, self.lease_s) / 2):
            for member in self.latest.values():  # the coordinator itself did not run, so it received no heartbeats
                member.last_beat_s = min(now_s, member.last_beat_s + away_s)
                member.moved_s = min(now_s, member.moved_s + away_s)

        def late(member: Member) -> float:
            """When its timeout expires."""
            return member.last_beat_s + self.heartbeat_timeout_s(member.kind)

        found = _due(self._timeouts, now_s, late, min(backlog_s, _MAX_BACKLOG_S))
        return sorted(found, key=_JOINED)  # a leader comes before its follower

    def heartbeat_timeout_s(self, kind: str) -> float:
        """The heartbeat timeout of a member of this kind, in seconds."""
        return min(self.beat_s, self.lease_s) if kind in ("shard", "follower") else self.beat_s

    def heartbeat_every_s(self, kind: str) -> float:
        """Seconds between two heartbeats of a member: a quarter of its timeout, up to a third with many replicas."""
        pushers = len(self._living["replica"]) + len(self._living["client"])
        return self.heartbeat_timeout_s(kind) * min(1 / 3, max(1 / 4, pushers / 1000))

    def stalled(self, now_s: float, limit_s: float) -> list[Member]:
        """Living members whose work has made no progress for `limit_s`; to be called periodically."""

        def late(member: Member) -> float:
            """When it has made none for so long; without work, not before it could have got some."""
            return now_s + limit_s if member.state not in _AT_WORK else now_s - self.idle_s(member, now_s) + limit_s

        return sorted(_due(self._stalls, now_s, late), key=_JOINED)

    def idle_s(self, member: Member, now_s: float) -> float:
        """Seconds since its work last made progress, or could not."""
        return now_s - max(member.moved_s, self._progress_s)

    def reset_progress_timers(self, now_s: float) -> None:
        """Restart the progress timers of all members, because no member's work can advance now."""
        self._progress_s = now_s

    # -- all of them -------------------------------------------------------------------------------------

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Restore another coordinator's members; they get extra time to find the new one before their timeouts expire.

        `incarnations` must be set before.
        """
        for row in state["latest"]:
            self._add(Member(**{**row, "last_beat_s": now_s + self.beat_s, "moved_s": now_s}), now_s)
        alive = {member.incarnation for member in self.latest.values() if member.alive}
        self.unsettled = TrackedDict(dict(state["unsettled"]))
        self.unforgotten = TrackedDict(dict.fromkeys(state["unforgotten"], True))
        self.dead = set(range(1, self.incarnations + 1)) - alive
        self.settled = self.dead - self.unsettled.keys()

    def alive(self, *kinds: str) -> Sequence[Member]:
        """The living members of these kinds, by kind and number."""
        if kinds not in self._sorted:
            found = [member for kind in kinds for member in self._living[kind].values()]
            self._sorted[kinds] = tuple(sorted(found, key=attrgetter("kind", "number")))
        return self._sorted[kinds]

    @property
    def replicas(self) -> Mapping[int, int]:
        """The living replicas, incarnation by number."""
        if self._replicas is None:
            self._replicas = {member.number: member.incarnation for member in self.alive("replica")}
        return self._replicas

    def all(self) -> list[Member]:
        """The latest incarnation of every member, by kind and number."""
        return [member for _, member in sorted(self.latest.items())]


def _due(
    heap: list[tuple[float, int, Member]], now_s: float, late_s: Callable[[Member], float], grace_s: float = 0.0
) -> list[Member]:
    """The living members of a heap that are late by `grace_s` at `now_s`; they stay in it, as those not yet late do."""
    found, again = [], []
    while heap and heap[0][0] <= now_s:
        _, incarnation, member = heapq.heappop(heap)
        if member.alive:
            at_s = late_s(member)
            if at_s + grace_s < now_s:
                found.append(member)
            again.append((max(now_s, at_s), incarnation, member))
    for entry in again:
        heapq.heappush(heap, entry)
    return found
