"""Effects that the job machine requests. The effect executor runs them in order, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, dataclass_transform

from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.vector_program import Operation


@dataclass_transform(frozen_default=True)
class Action:
    """An effect. Each subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class AssignShards(Action):
    """Assign every shard its segments."""

    placement: Placement


class Restore(Action):
    """Load a snapshot set into all shards, then accept pushes."""

    set_id: str


class TakeSnapshot(Action):
    """Write a snapshot set; `initial` ones are followed by `MakeReady`."""

    set_id: str


class MakeReady(Action):
    """Initial values are complete and safe: shards accept pushes by the update rule."""


class Fence(Action):
    """Fence an ended incarnation on every shard, and read its ledgers there."""

    number: int
    incarnation: int


class SetMembership(Action):
    """Send the members of each round to all shards."""

    member_epoch: int
    rounds: tuple[tuple[int, tuple[int, ...]], ...]


class DropLedger(Action):
    """Drop the ledger rows of an incarnation whose work is settled, durably."""

    incarnation: int


class RecoverShard(Action):
    """Restore a shard in another process: its segments, the newest set, the fenced incarnations, the membership.

    A shard that is new to the job is initialised in the same way, without segments.

    Attributes
    ----------
    incarnation
        Of the member that becomes this shard.
    set_id
        The newest one when the command is issued; when it is run, it gets the newest of that time. None before there
        is any set: then the shard waits for initial values.
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


class AttachFollower(Action):
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


class DetachFollower(Action):
    """Detach a shard's follower, in this epoch of its replication link."""

    shard: int
    epoch: int


class RunProgram(Action):
    """Run a program over the named vectors of all shards, and return its scalars.

    `ticket`: the program is run only while the machine still waits for this ticket.
    """

    ticket: int
    program: tuple[Operation, ...]


class RollBack(Action):
    """Load a snapshot set into all shards again: one of them was restored from it and has no later state."""

    set_id: str


class MigrateSegments(Action):
    """Migrate segments from one shard to another; afterwards both receive what they own, whatever the outcome."""

    sender: int
    receiver: int
    segments: tuple[int, ...]


class ConfirmOwnership(Action):
    """Send these shards the segments they own: another coordinator may have failed during a migration."""

    shards: tuple[int, ...]


class DecommissionShard(Action):
    """Let a shard that no longer has a place exit."""

    shard: int
    incarnation: int
    address: str


class Export(Action):
    """Write model.safetensors from a named vector."""

    vector: str


class LogEvent(Action):
    """Write an event to the run's log."""

    event: str
    fields: Mapping[str, Any]


class WriteSummary(Action):
    """Write the summary of a run whose model is written, before its last evaluations."""


class FinishRun(Action):
    """Close the run folder and let the shards exit."""
