"""Losses of acknowledged pushes, each set against the deaths of the shard's two copies.

A shard that is restored from a snapshot set (event `shard_back`) has lost what was pushed since. With two copies that
may happen only where both died: the leader, and the follower that was in sync last, with no other follower in sync in
between. Where a leader has had no follower in sync since it took over, its predecessor was the other copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.faults.shard_parts import Copies, followed, wall_s
from benchmarks.faults.supervisor import Death


def restored(events: Iterable[dict[str, Any]], deaths: Sequence[Death]) -> list[dict[str, Any]]:
    """Every shard that was restored from a set: moment, shard, samples since that set, and deaths of its two copies."""
    return [_set_against(event, copies, deaths) for event, copies in followed(events) if event["event"] == "shard_back"]


def _set_against(event: dict[str, Any], copies: Copies, deaths: Sequence[Death]) -> dict[str, Any]:
    """The samples that a restored shard lacks, and the last death of each copy before."""
    died: dict[str, Any] = {"wall_s": wall_s(event), "shard": event["shard"]}
    for part, name in (("leader", copies.leader), ("follower", copies.whole)):
        mine = [death for death in deaths if death.name == name and death.wall_s <= wall_s(event)]
        # The follower that was in sync last may have died before this pair's leader took over; the leader after it.
        died[part] = [round(death.wall_s, 3) for death in mine if death.wall_s >= copies.since_s][-1:]
    names = [copies.leader, copies.whole]
    return {"samples": event["of"] - event["samples"], "set": event["set"], "names": names, **died}


def unexplained(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Losses without the death of both copies."""

    def both_died(row: dict[str, Any]) -> bool:
        return bool(row["leader"]) and bool(row["follower"] or not row["names"][1])

    return [row for row in rows if row["samples"] > 0 and not both_died(row)]
