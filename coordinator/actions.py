"""What the job machine wants done to the world. Carried out in order by the runner, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dbelief.placement import Placement


@dataclass(frozen=True)
class AssignShards:
    """Give every shard its segments."""

    placement: Placement


@dataclass(frozen=True)
class Restore:
    """Load a snapshot set into all shards, then accept pushes."""

    set_id: str


@dataclass(frozen=True)
class TakeSnapshot:
    """Write a snapshot set; `initial` ones are followed by `MakeReady`."""

    set_id: str


@dataclass(frozen=True)
class MakeReady:
    """Initial values are complete and safe: shards accept pushes by the rule."""


@dataclass(frozen=True)
class Fence:
    """Refuse a dead life on every shard, read what it had pushed, and forget its ledger rows."""

    number: int
    incarnation: int


@dataclass(frozen=True)
class SetMembership:
    """Tell all shards who takes part in which round."""

    member_epoch: int
    rounds: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Export:
    """Write model.safetensors from a named vector."""

    vector: str


@dataclass(frozen=True)
class Note:
    """Write an event to the run's log."""

    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Finish:
    """Close the run folder and let the shards end."""


Action = AssignShards | Restore | TakeSnapshot | MakeReady | Fence | SetMembership | Export | Note | Finish
