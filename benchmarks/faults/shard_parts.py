"""Which part a shard process had at a moment, leader or follower, from the job's events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from benchmarks.faults.supervisor import Death


def wall_s(event: dict[str, Any]) -> float:
    """Moment of an event, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()


def changes(events: Iterable[dict[str, Any]]) -> list[tuple[float, str, str]]:
    """(wall_s, name of the process, its part from then on), in order."""
    found: list[tuple[float, str, str]] = []
    followers: dict[int, str] = {}
    for event in events:
        if event["event"] == "member" and event["what"] == "joined" and event["role"] in ("shard", "follower"):
            part = "leading shard" if event["role"] == "shard" else "following shard"
            found.append((wall_s(event), event["name"], part))
            followers[event["id"]] = event["name"]
        elif event["event"] in ("promoted", "shard_back") and event["shard"] in followers:
            found.append((wall_s(event), followers[event["shard"]], "leading shard"))
    return found


def with_parts(deaths: Sequence[Death], events: Iterable[dict[str, Any]]) -> list[Death]:
    """The same deaths, those of shards with "leading shard" or "following shard" as their part, where it is known."""
    known = changes(events)

    def part(death: Death) -> str:
        mine = [part for at_s, name, part in known if name == death.name and at_s <= death.wall_s]
        return mine[-1] if mine and death.part == "shard" else death.part

    return [replace(death, part=part(death)) for death in deaths]
