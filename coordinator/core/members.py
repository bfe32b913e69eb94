"""Who is in the job: shards, replicas and clients, each alive as long as it beats. No clock, no socket.

Every life of every member gets an incarnation number of its own, never used twice, by which a shard tells a replica
from its ghost. Numbers of the dead are given out again: a restarted replica carries on where its forerunner was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dbelief.errors import ResourceExhausted

_LIKE = {"follower": "shard"}
"""Kinds that join as another."""
MOST_MEMBERS = 1024
"""Replicas and clients of one job at a time."""
_LONGEST_LOOK_S = 1.0
"""Looks for silent members that are further apart mean that the coordinator itself was away (stopped, swapped out)."""


@dataclass
class Member:
    """One life of one member.

    Attributes
    ----------
    kind
        "shard", "follower" (of the shard of its number), "replica" or "client".
    last_beat_s, moved_s
        On the coordinator's clock: when it was last heard, and when its work last came on.
    state
        What people see: "waiting", "training", "evaluating", "left", "died".
    leaves_after
        The snapshot set, by its count, that a shard which was asked to end waits for; 0: it was not.
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
        """Neither gone nor dead."""
        return self.state not in ("left", "died")

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"{self.kind} {self.number} ({self.name})"


@dataclass
class Members:
    """All lives of all members, by kind and number the latest one.

    Attributes
    ----------
    beat_s
        A member silent for so long is dead.
    shards
        Numbers that shards may have: at first as many as the job plans.
    replication
        Processes for each shard; one more is refused.
    lease_s
        A shard or follower silent for so long is dead, if that is less.
    needed
        Those of the shards without whom the job cannot go on.
    dead, settled
        Lives of pushers that are over; those of them whose ledgers were read. After a takeover all lives that are over
        are among both, but for those of `dead` that are not settled: what is written does not grow with them.
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
    unforgotten: set[int] = field(default_factory=set)
    _looked_s: float | None = None
    _latest: dict[tuple[str, int], Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.needed = set(self.shards)

    def join(self, kind: str, token: int, name: str, address: str, now_s: float, wish: int | None = None) -> Member:
        """Take a member in; a repeated call with the same token gets the same answer.

        `wish` is the number it would like, and gets where that is free. A shard for which no place is left follows one,
        where there are to be followers.

        Raises
        ------
        Full
            Where all planned shards are there, or as many others as a job may have.
        """
        for member in self._latest.values():
            if member.token == token and kind in (member.kind, _LIKE.get(member.kind)) and member.alive:
                return member
        number = self._free_number(kind, wish)
        if number is None and kind == "shard" and (unfollowed := self._unfollowed(address)):
            kind, number = "follower", wish if wish in unfollowed else unfollowed[0]
        if number is None and kind == "shard":
            raise ResourceExhausted(f"the job has its {len(self.shards)} shards; `dbelief scale ps` lets it have more")
        if number is None:
            raise ResourceExhausted(f"the job has {MOST_MEMBERS} replicas and clients, as many as may be")
        self.incarnations += 1
        member = Member(kind, number, self.incarnations, name, token, address, now_s)
        self._latest[kind, number] = member
        return member

    def _unfollowed(self, address: str) -> list[int]:
        """Numbers of shards that a new follower may follow, those on other hosts than its own first."""
        if self.replication < 2:
            return []
        followed = {m.number for m in self.alive("follower")}
        here = address.rpartition(":")[0]
        free = [m for m in self.alive("shard") if m.number not in followed]
        return [m.number for m in sorted(free, key=lambda m: (m.address.rpartition(":")[0] == here, m.number))]

    def promote(self, follower: Member) -> None:
        """A follower is the shard from now on."""
        del self._latest[follower.kind, follower.number]
        follower.kind, follower.state = "shard", "waiting"
        self._latest[follower.kind, follower.number] = follower

    def alive_shard(self, number: int) -> bool:
        """Whether somebody is this shard."""
        member = self._latest.get(("shard", number))
        return member is not None and member.alive

    def find_server(self, number: int, incarnation: int) -> Member | None:
        """The living shard of this number, or the one that follows it, where this is its life."""
        return self.find("shard", number, incarnation) or self.find("follower", number, incarnation)

    def _free_number(self, kind: str, wish: int | None) -> int | None:
        """The number of one that joins; None where none is left."""
        # Replicas and clients both push, so they share one row of numbers.
        kinds = ("shard",) if kind == "shard" else ("replica", "client")
        taken = {m.number for m in self._latest.values() if m.kind in kinds and m.alive}
        numbers = sorted(self.shards) if kind == "shard" else range(MOST_MEMBERS)
        if wish is not None and wish not in taken and wish in numbers:
            return wish
        return next((number for number in numbers if number not in taken), None)

    def named(self, kind: str, name: str, token: int) -> Member | None:
        """The earlier life of a process that was started again."""
        kinds = (kind, *(other for other, like in _LIKE.items() if like == kind))
        alike = (m for m in self.alive(*kinds) if m.name == name and m.token != token)
        return next(alike, None)

    def mark_gone(self, member: Member, how: str) -> None:
        """A life has ended: it "left" or "died"."""
        member.state = how
        if member.kind not in ("shard", "follower"):
            self.dead.add(member.incarnation)

    def find(self, kind: str, number: int, incarnation: int) -> Member | None:
        """This very life, where it is alive."""
        member = self._latest.get((kind, number))
        return member if member is not None and member.incarnation == incarnation and member.alive else None

    def find_pusher(self, number: int, incarnation: int) -> Member | None:
        """The living replica or client of this number and life."""
        return self.find("replica", number, incarnation) or self.find("client", number, incarnation)

    def expired(self, now_s: float) -> list[Member]:
        """Those who have not beaten for too long; to be asked again and again."""
        away_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if away_s > max(_LONGEST_LOOK_S, min(self.beat_s, self.lease_s) / 2):
            for member in self._latest.values():  # it was the coordinator that heard nobody
                member.last_beat_s = min(now_s, member.last_beat_s + away_s)
                member.moved_s = min(now_s, member.moved_s + away_s)
        return [
            m for m in self._latest.values() if m.alive and now_s - m.last_beat_s > self.heartbeat_timeout_s(m.kind)
        ]

    def heartbeat_timeout_s(self, kind: str) -> float:
        """How long one of this kind may be silent."""
        return min(self.beat_s, self.lease_s) if kind in ("shard", "follower") else self.beat_s

    def stalled(self, now_s: float, limit_s: float) -> list[Member]:
        """Those who live, and whose work has not come on for so long."""
        at_work = ("training", "evaluating")
        return [m for m in self._latest.values() if m.state in at_work and now_s - m.moved_s > limit_s]

    def reset_progress_timers(self, now_s: float) -> None:
        """Nobody's work can come on now."""
        for member in self._latest.values():
            member.moved_s = now_s

    def state(self) -> dict[str, Any]:
        """All of it, as of now; JSON holds it."""
        return {
            "dead": sorted(self.dead - self.settled),
            "unforgotten": sorted(self.unforgotten),
            "latest": [asdict(member) for member in self._latest.values()],
        }

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Take a coordinator's members over; they have some time to find the new one before they count as silent.

        The number of lives is to be known before.
        """
        members = [
            Member(**{**fields, "last_beat_s": now_s + self.beat_s, "moved_s": now_s}) for fields in state["latest"]
        ]
        self._latest = {(member.kind, member.number): member for member in members}
        if "settled" in state:  # an earlier version wrote it
            self.dead, self.settled = set(state["dead"]), set(state["settled"])
            return
        self.dead = set(range(1, self.incarnations + 1)) - {member.incarnation for member in members if member.alive}
        self.settled, self.unforgotten = self.dead - set(state["dead"]), set(state["unforgotten"])

    def alive(self, *kinds: str) -> list[Member]:
        """The living of these kinds, by number."""
        found = [m for m in self._latest.values() if m.kind in kinds and m.alive]
        return sorted(found, key=lambda m: (m.kind, m.number))

    def all(self) -> list[Member]:
        """The latest life of everyone, by kind and number."""
        return [member for _, member in sorted(self._latest.items())]
