"""Losses of acknowledged pushes, each set against the deaths of the shard's two copies.

A shard that is restored from a snapshot set (event `shard_back`) has lost what was pushed since. With two copies that
may happen only where both died: the leader, and the follower that was in sync last, with no other follower in sync in
between. Where a leader has had no follower in sync since it took over, its predecessor was the other copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.shard_parts import wall_s
from benchmarks.faults.supervisor import Death


@dataclass
class Copies:
    """The last known holders of one shard's data, by the names of their processes; "" where there is none.

    Attributes
    ----------
    joined
        The process that joined last for this shard, or as its follower.
    since_s
        Moment from which a death of the leader or the follower ends this pair.
    """

    leader: str = ""
    follower: str = ""
    joined: str = ""
    since_s: float = 0.0


def restored(events: Iterable[dict[str, Any]], deaths: Sequence[Death]) -> list[dict[str, Any]]:
    """Every shard that was restored from a set: moment, shard, samples since that set, and deaths of its two copies."""
    rows: list[dict[str, Any]] = []
    shards: dict[int, Copies] = {}
    for event in events:
        what = event["event"]
        if what not in ("member", "followed", "promoted", "shard_back"):
            continue
        at_s = wall_s(event)
        copies = shards.setdefault(event["id"] if what == "member" else event["shard"], Copies())
        if what == "member" and event["what"] == "joined" and event["role"] in ("shard", "follower"):
            copies.joined = event["name"]
            copies.leader = copies.leader or event["name"]
        elif what == "followed":
            copies.follower, copies.since_s = event["name"], at_s
        elif what == "promoted":
            copies.leader, copies.follower = copies.follower, ""
        elif what == "shard_back":
            rows.append({"wall_s": at_s, "shard": event["shard"], **_set_against(event, copies, at_s, deaths)})
            copies.leader, copies.follower, copies.since_s = copies.joined, "", at_s
    return rows


def _set_against(event: dict[str, Any], copies: Copies, at_s: float, deaths: Sequence[Death]) -> dict[str, Any]:
    """The samples that a restored shard lacks, and the last death of each copy before."""
    died = {}
    for part, name in (("leader", copies.leader), ("follower", copies.follower)):
        mine = [death for death in deaths if death.name == name and death.wall_s <= at_s]
        # The follower that was in sync last may have died before this pair's leader took over; the leader after it.
        died[part] = [round(death.wall_s, 3) for death in mine if death.wall_s >= copies.since_s][-1:]
    names = [copies.leader, copies.follower]
    return {"samples": event["of"] - event["samples"], "set": event["set"], "names": names, **died}


def unexplained(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Losses without the death of both copies."""

    def both_died(row: dict[str, Any]) -> bool:
        return bool(row["leader"]) and bool(row["follower"] or not row["names"][1])

    return [row for row in rows if row["samples"] > 0 and not both_died(row)]
