"""Members of the job: shards, replicas and clients, each alive as long as it sends heartbeats. No clock, no socket.

Every incarnation of every member gets a unique number. By it a shard distinguishes a replica from an earlier
incarnation that may still send. Replica numbers are reused: a restarted replica continues under its old number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from dbelief.errors import ResourceExhausted

_JOINS_AS = {"follower": "shard"}
"""Kinds that join as another."""
MAX_MEMBERS = 1024
"""Maximum of replicas and clients of one job at a time."""
_TIMES = frozenset({"last_beat_s", "moved_s"})
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

    @property
    def alive(self) -> bool:
        """Whether it has neither left nor died."""
        return self.state not in ("left", "died")

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.number} ({self.name})"


@dataclass
class Members:
    """All members, by kind and number the latest incarnation.

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
    dead, settled
        Incarnations of pushers that have ended; those of them whose ledgers were read. After a takeover both hold all
        ended incarnations, except that the unsettled ones are in `dead` only: the persisted state does not grow with
        their number.
    numbers
        Numbers of those in `dead` only: others may have them by now.
    unforgotten
        Those of the settled whose ledger rows not all shards have dropped yet.
    """

    beat_s: float
    shards: set[int]
    replication: int = 1
    lease_s: float = math.inf
    incarnations: int = 0
    dead: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    numbers: dict[int, int] = field(default_factory=dict)
    unforgotten: set[int] = field(default_factory=set)
    _checked_s: float | None = None
    _latest: dict[tuple[str, int], Member] = field(default_factory=dict)

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
        for member in self._latest.values():
            if member.token == token and kind in (member.kind, _JOINS_AS.get(member.kind)) and member.alive:
                return member
        number = self._free_number(kind, requested_number)
        if number is None and kind == "shard" and (unfollowed := self._unfollowed(address)):
            kind, number = "follower", requested_number if requested_number in unfollowed else unfollowed[0]
        if number is None and kind == "shard":
            raise ResourceExhausted(
                f"all {len(self.shards)} shards of the job have joined; `dbelief scale ps` allows more"
            )
        if number is None:
            raise ResourceExhausted(f"the job has {MAX_MEMBERS} replicas and clients, the maximum")
        self.incarnations += 1
        member = Member(kind, number, self.incarnations, name, token, address, now_s)
        self._latest[kind, number] = member
        return member

    def _unfollowed(self, address: str) -> list[int]:
        """Numbers of shards that a new follower may follow, those on other hosts than its own first."""
        if self.replication < 2:
            return []
        followed = {m.number for m in self.alive("follower")}
        host = address.rpartition(":")[0]
        free = [m for m in self.alive("shard") if m.number not in followed]
        return [m.number for m in sorted(free, key=lambda m: (m.address.rpartition(":")[0] == host, m.number))]

    def promote(self, follower: Member) -> None:
        """Promote a follower to the shard of its number."""
        del self._latest[follower.kind, follower.number]
        follower.kind, follower.state = "shard", "waiting"
        self._latest[follower.kind, follower.number] = follower

    def find_server(self, number: int, incarnation: int) -> Member | None:
        """The living shard of this number, or its follower, where it has this incarnation."""
        return self.find("shard", number, incarnation) or self.find("follower", number, incarnation)

    def _free_number(self, kind: str, requested_number: int | None) -> int | None:
        """The number for a joining member; None where none is free."""
        # Replicas and clients both push, so they share one range of numbers.
        kinds = ("shard",) if kind == "shard" else ("replica", "client")
        taken = {m.number for m in self._latest.values() if m.kind in kinds and m.alive}
        numbers = sorted(self.shards) if kind == "shard" else range(MAX_MEMBERS)
        if requested_number is not None and requested_number not in taken and requested_number in numbers:
            return requested_number
        return next((number for number in numbers if number not in taken), None)

    def named(self, kind: str, name: str, token: int) -> Member | None:
        """The earlier incarnation of a process that was restarted."""
        kinds = (kind, *(other for other, like in _JOINS_AS.items() if like == kind))
        alike = (m for m in self.alive(*kinds) if m.name == name and m.token != token)
        return next(alike, None)

    def mark_ended(self, member: Member, how: str) -> None:
        """Mark the end of an incarnation: it "left" or "died"."""
        member.state = how
        if member.kind not in ("shard", "follower"):
            self.dead.add(member.incarnation)
            self.numbers[member.incarnation] = member.number

    def settle(self, incarnation: int) -> None:
        """Record that the ledgers of an incarnation that has ended were read; their rows are to be dropped."""
        self.settled.add(incarnation)
        self.numbers.pop(incarnation, None)
        self.unforgotten.add(incarnation)

    def find(self, kind: str, number: int, incarnation: int) -> Member | None:
        """This incarnation, where it is alive."""
        member = self._latest.get((kind, number))
        return member if member is not None and member.incarnation == incarnation and member.alive else None

    def find_pusher(self, number: int, incarnation: int) -> Member | None:
        """The living replica or client of this number and incarnation."""
        return self.find("replica", number, incarnation) or self.find("client", number, incarnation)

    def expired(self, now_s: float) -> list[Member]:
        """Members whose heartbeat timeout has expired; to be called periodically."""
        away_s = 0.0 if self._checked_s is None else now_s - self._checked_s
        self._checked_s = now_s
        if away_s > max(_MAX_CHECK_GAP_S, min(self.beat_s, self.lease_s) / 2):
            for member in self._latest.values():  # the coordinator itself did not run, so it received no heartbeats
                member.last_beat_s = min(now_s, member.last_beat_s + away_s)
                member.moved_s = min(now_s, member.moved_s + away_s)
        return [
            m for m in self._latest.values() if m.alive and now_s - m.last_beat_s > self.heartbeat_timeout_s(m.kind)
        ]

    def heartbeat_timeout_s(self, kind: str) -> float:
        """The heartbeat timeout of a member of this kind, in seconds."""
        return min(self.beat_s, self.lease_s) if kind in ("shard", "follower") else self.beat_s

    def stalled(self, now_s: float, limit_s: float) -> list[Member]:
        """Living members whose work has made no progress for `limit_s`."""
        at_work = ("training", "evaluating")
        return [m for m in self._latest.values() if m.state in at_work and now_s - m.moved_s > limit_s]

    def reset_progress_timers(self, now_s: float) -> None:
        """Restart the progress timers of all members, because no member's work can advance now."""
        for member in self._latest.values():
            member.moved_s = now_s

    def state(self) -> dict[str, Any]:
        """The state for another coordinator, JSON-serialisable; without times, which every heartbeat changes."""
        latest = [
            {name: value for name, value in vars(member).items() if name not in _TIMES}
            for member in self._latest.values()
        ]
        return {
            "dead": sorted(self.dead - self.settled),
            "numbers": list(self.numbers.items()),
            "unforgotten": sorted(self.unforgotten),
            "latest": latest,
        }

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Restore another coordinator's members; they get extra time to find the new one before their timeouts expire.

        `incarnations` must be set before.
        """
        members = [
            Member(**{**fields, "last_beat_s": now_s + self.beat_s, "moved_s": now_s}) for fields in state["latest"]
        ]
        self._latest = {(member.kind, member.number): member for member in members}
        self.numbers = dict(state.get("numbers", ()))  # an earlier version did not store them
        if "settled" in state:  # written by an earlier version
            self.dead, self.settled = set(state["dead"]), set(state["settled"])
            return
        self.dead = set(range(1, self.incarnations + 1)) - {member.incarnation for member in members if member.alive}
        self.settled, self.unforgotten = self.dead - set(state["dead"]), set(state["unforgotten"])

    def alive(self, *kinds: str) -> list[Member]:
        """The living members of these kinds, by kind and number."""
        found = [m for m in self._latest.values() if m.alive and m.kind in kinds]
        found.sort(key=attrgetter("kind", "number"))
        return found

    def all(self) -> list[Member]:
        """The latest incarnation of every member, by kind and number."""
        return [member for _, member in sorted(self._latest.items())]
