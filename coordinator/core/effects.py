"""Effects that the job machine requests. The effect executor runs them in order, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.vector_program import Operation


@dataclass(frozen=True)
class AssignShards:
    """Assign every shard its segments."""

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
    """Initial values are complete and safe: shards accept pushes by the update rule."""


@dataclass(frozen=True)
class Fence:
    """Fence an ended incarnation on every shard, and read its ledgers there."""

    number: int
    incarnation: int


@dataclass(frozen=True)
class SetMembership:
    """Send the members of each round to all shards."""

    member_epoch: int
    rounds: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class DropLedger:
    """Drop the ledger rows of an incarnation whose work is settled, durably."""

    number: int
    incarnation: int


@dataclass(frozen=True)
class RecoverShard:
    """Restore a shard in another process: its segments, the newest set, the fenced incarnations, the membership.

    A shard that is new to the job is initialised in the same way, without segments.

    Attributes
    ----------
    incarnation
        Of the member that becomes this shard.
    set_id
        None before there is any set: then the shard waits for initial values.
    fenced, settled
        Incarnations of pushers that have ended; of the settled ones, ledger rows are dropped too.
    promoted
        Whether it was the shard's follower, and has all that was acknowledged: nothing is loaded then.
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
    """Attach the shard process at an address to a shard as its follower.

    Attributes
    ----------
    epoch
        Of the replication link.
    shard_epoch
        Of the incarnation that the follower gets.
    """

    shard: int
    epoch: int
    address: str
    shard_epoch: int


@dataclass(frozen=True)
class DetachFollower:
    """Detach a shard's follower, in this epoch of its replication link."""

    shard: int
    epoch: int


@dataclass(frozen=True)
class RunProgram:
    """Run a program over the named vectors of all shards, and return its scalars.

    `ticket`: the program is run only while the machine still waits for this ticket.
    """

    ticket: int
    program: tuple[Operation, ...]


@dataclass(frozen=True)
class RollBack:
    """Load a snapshot set into all shards again: one of them was restored from it and has no later state."""

    set_id: str


@dataclass(frozen=True)
class MigrateSegments:
    """Migrate segments from one shard to another; afterwards both receive what they own, whatever the outcome."""

    giver: int
    taker: int
    segments: tuple[int, ...]


@dataclass(frozen=True)
class ConfirmOwnership:
    """Send these shards the segments they own: another coordinator may have failed during a migration."""

    shards: tuple[int, ...]


@dataclass(frozen=True)
class DecommissionShard:
    """Let a shard that no longer has a place exit."""

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
    """Close the run folder and let the shards exit."""


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
