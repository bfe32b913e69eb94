"""Which part a shard process had at a moment, leader or follower, from the job's events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from benchmarks.faults.supervisor import Death


def wall_s(event: dict[str, Any]) -> float:
    """Moment of an event, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()


@dataclass
class Copies:
    """The processes of one shard, by name; "" where there is none.

    Attributes
    ----------
    leader
        The process that serves it.
    follower
        The process that follows it, in sync or not.
    whole
        The follower that was in sync last with this leader.
    next_leader
        The process that takes over once it is loaded.
    since_s
        Moment from which a death of `leader` or `whole` ends this pair.
    """

    leader: str = ""
    follower: str = ""
    whole: str = ""
    next_leader: str = ""
    since_s: float = 0.0

    def apply(self, event: dict[str, Any]) -> None:
        """Follow an event of this shard."""
        what = event["event"]
        if what == "member" and event["role"] == "follower":
            self.follower = event["name"] if event["what"] == "joined" else ""
        elif what == "member" and event["what"] == "joined":
            self.next_leader = event["name"]
            self.leader = self.leader or event["name"]
        elif what == "member":
            self.next_leader, self.follower = self.follower, ""
        elif what == "followed":
            self.whole, self.since_s = event["name"], wall_s(event)
        elif what in ("promoted", "shard_back"):
            self.leader, self.whole = self.next_leader, ""
            self.since_s = self.since_s if what == "promoted" else wall_s(event)


def followed(events: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Copies]]:
    """(event, the copies of its shard before it) of every event of a shard; the copies follow it afterwards."""
    shards: dict[int, Copies] = {}
    for event in events:
        if event["event"] == "member" and event["role"] in ("shard", "follower"):
            copies = shards.setdefault(event["id"], Copies())
        elif event["event"] in ("followed", "promoted", "shard_back"):
            copies = shards.setdefault(event["shard"], Copies())
        else:
            continue
        yield event, copies
        copies.apply(event)


def leaders(events: Iterable[dict[str, Any]]) -> dict[int, str]:
    """The process that serves each shard after these events, by shard."""
    found: dict[int, Copies] = {}
    for event, copies in followed(events):
        found[event["id"] if event["event"] == "member" else event["shard"]] = copies
    return {shard: copies.leader for shard, copies in found.items()}


def changes(events: Iterable[dict[str, Any]]) -> list[tuple[float, str, str]]:
    """(wall_s, name of the process, its part from then on), in order."""
    found: list[tuple[float, str, str]] = []
    for event, copies in followed(events):
        if event["event"] == "member" and event["what"] == "joined":
            part = "leading shard" if event["role"] == "shard" else "following shard"
            found.append((wall_s(event), event["name"], part))
        elif event["event"] in ("promoted", "shard_back"):
            found.append((wall_s(event), copies.next_leader, "leading shard"))
    return found


def with_parts(deaths: Sequence[Death], events: Iterable[dict[str, Any]]) -> list[Death]:
    """The same deaths, those of shards with "leading shard" or "following shard" as their part, where it is known."""
    known = changes(events)

    def part(death: Death) -> str:
        mine = [part for at_s, name, part in known if name == death.name and at_s <= death.wall_s]
        return mine[-1] if mine and death.part == "shard" else death.part

    return [replace(death, part=part(death)) for death in deaths]
