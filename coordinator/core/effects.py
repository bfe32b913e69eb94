"""What the job machine wants done to the world. Carried out in order by the runner, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.vector_program import Operation


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
    """Refuse a dead life on every shard, and read what it had pushed."""

    number: int
    incarnation: int


@dataclass(frozen=True)
class SetMembership:
    """Tell all shards who takes part in which round."""

    member_epoch: int
    rounds: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class DropLedger:
    """Drop the ledger rows of a life whose work is settled, durably."""

    number: int
    incarnation: int


@dataclass(frozen=True)
class RecoverShard:
    """Bring a shard back in another process: its segments, the newest set, whom to refuse, who takes part.

    One that is new to the job is brought in alike, without segments.

    Attributes
    ----------
    incarnation
        Of the member that is to be this shard.
    set_id
        None before there is any set: then it waits for initial values.
    fenced, settled
        Lives of pushers that are over; of those whose work is settled, ledger rows are dropped too.
    promoted
        Whether it followed the shard, and has all that was acknowledged: nothing is loaded then.
    """

    place: ShardPlacement
    incarnation: int
    set_id: str | None
    fenced: tuple[int, ...]
    settled: tuple[int, ...]
    membership: SetMembership | None
    promoted: bool = False


@dataclass(frozen=True)
class AttachFollower:
    """Have the shard process at an address follow a shard.

    Attributes
    ----------
    epoch
        Of the chain.
    shard_epoch
        Of the life that the follower gets.
    """

    shard: int
    epoch: int
    address: str
    shard_epoch: int


@dataclass(frozen=True)
class DetachFollower:
    """Tell a shard that nobody follows it, in this epoch of its chain."""

    shard: int
    epoch: int


@dataclass(frozen=True)
class RunProgram:
    """Run a program over the named vectors of all shards; its scalars come back.

    `ticket`: it is only to be run while the machine still waits for this one.
    """

    ticket: int
    program: tuple[Operation, ...]


@dataclass(frozen=True)
class RollBack:
    """Load a snapshot set into all shards again: one of them has come back with no more than that."""

    set_id: str


@dataclass(frozen=True)
class MigrateSegments:
    """Let segments go from one shard to another; then both know what they hold, whatever came of it."""

    giver: int
    taker: int
    segments: tuple[int, ...]


@dataclass(frozen=True)
class ConfirmOwnership:
    """Tell these shards which segments they hold: another coordinator may have died while it moved some."""

    shards: tuple[int, ...]


@dataclass(frozen=True)
class DecommissionShard:
    """Let a shard end that has no place any more."""

    shard: int
    incarnation: int
    address: str


@dataclass(frozen=True)
class Export:
    """Write model.safetensors from a named vector."""

    vector: str


@dataclass(frozen=True)
class LogEvent:
    """Write an event to the run's log."""

    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class FinishRun:
    """Close the run folder and let the shards end."""


ShardAction = (
    AssignShards
    | Restore
    | TakeSnapshot
    | MakeReady
    | Fence
    | DropLedger
    | SetMembership
    | RunProgram
    | RollBack
    | Export
    | MigrateSegments
    | ConfirmOwnership
)
Action = ShardAction | RecoverShard | AttachFollower | DetachFollower | DecommissionShard | LogEvent | FinishRun
