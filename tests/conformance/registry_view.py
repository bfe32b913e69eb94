"""What the registry says about shards, followers and placement, and how it differs from what it said before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Chain:
    """A shard's link: see `coordinator.cluster.replication.ShardReplication`."""

    epoch: int = 0
    follower: int | None = None
    whole: bool = False
    promoted: int | None = None


@dataclass(frozen=True)
class Server:
    """A living member that is a shard's process."""

    leads: bool
    shard: int
    address: str


@dataclass(frozen=True)
class Place:
    """A shard's place in the placement."""

    epoch: int
    address: str
    segments: frozenset[int]


@dataclass(frozen=True)
class View:
    """Stored state of the job.

    Attributes
    ----------
    epoch
        Of the coordinator that wrote last.
    servers
        By incarnation.
    alive, dead
        Incarnations of pushers that are members, and of those that were declared failed and are not settled.
    places
        By shard. Empty before the first placement.
    placement
        Its epoch; 0 before the first.
    saved
        Whether there is a snapshot set.
    """

    epoch: int = 0
    state: str = "empty"
    servers: Mapping[int, Server] = field(default_factory=dict)
    alive: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    chains: Mapping[int, Chain] = field(default_factory=dict)
    places: Mapping[int, Place] = field(default_factory=dict)
    placement: int = 0
    resharding: bool = False
    saved: bool = False

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.state in ("done", "failed")

    def shard_of(self, segment: int) -> int | None:
        """The shard that the placement gives a segment to."""
        return next((shard for shard, place in self.places.items() if segment in place.segments), None)


class Registry:
    """The values that were written, and the view of them."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._rows: dict[str, dict[str, Any]] = {"member": {}, "incarnation": {}}
        self.view = View()

    def write(self, epoch: int, values: Mapping[str, bytes | None]) -> View:
        """Add what was written; the new view."""
        for name, text in values.items():
            rows = self._rows.get(name.partition(":")[0])
            if rows is not None:
                rows[name] = json.loads(text) if text is not None else None
            elif name in ("state", "placement"):
                self._values[name] = json.loads(text) if text is not None else None
        state = self._values.get("state")
        if state is None:
            return self.view
        latest = [one for one in self._rows["member"].values() if one and one["state"] not in ("left", "died")]
        # A coordinator that takes over before training begins anew, and the placement before it is void.
        placement = self._values.get("placement") if state["state"] != "empty" else None
        self.view = View(
            epoch,
            state["state"],
            {
                one["incarnation"]: Server(one["kind"] == "shard", one["number"], one["address"])
                for one in latest
                if one["kind"] in ("shard", "follower")
            },
            frozenset(one["incarnation"] for one in latest if one["kind"] in ("replica", "client")),
            frozenset(
                int(name.partition(":")[2])
                for name, row in self._rows["incarnation"].items()
                if row and "unsettled" in row
            ),
            {int(number): Chain(**fields) for number, fields in state["chains"]["chains"].items()},
            {
                place["shard"]: Place(place["shard_epoch"], place["address"], _segments(place["runs"]))
                for place in placement["places"]
            }
            if placement
            else {},
            placement["epoch"] if placement else 0,
            state["resizing"]["running"],
            state["set"] is not None,
        )
        return self.view


def _segments(runs: Any) -> frozenset[int]:
    return frozenset(index for first, count in runs for index in range(first, first + count))
