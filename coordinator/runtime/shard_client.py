"""The coordinator's hand on the shards: commands with the leader's epoch, to all shards in order. Knows the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc

from dbelief.checkpoint.snapshot_set import complete_until, quarantine_set
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import PARAMETERS
from dbelief.core.vector_program import Operation, together
from dbelief.errors import Moved, SnapshotError, Unavailable
from dbelief.job import Job
from dbelief.process.console import announce
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import parameters_pb2_grpc as stubs
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.channel import named_errors, open_channel
from dbelief.rpc.wire.convert import program_to_wire

from ..core.effects import (
    AttachFollower,
    DecommissionShard,
    DetachFollower,
    MigrateSegments,
    RecoverShard,
    SetMembership,
)
from . import shard_commands
from .assignment import assignment

TIMEOUT_S = 10.0
"""How long a shard may take to obey; writing or reading a snapshot may take `SNAPSHOT_S`."""
ASSIGN_S = 120.0
"""How long a shard may take to be assigned segments: it compiles first, which takes seconds where no cache has it."""
SNAPSHOT_S = 600.0
FOLLOWER_S = 2.0
"""How long one that is to follow may take to answer: others may wait for the thread that asks."""
_LOOK_S = 0.2
_SPARE_CHANNELS = 8
"""Addresses outside the placement, newest first, whose channels stay open: shards that come back, followers."""


class ShardClient:
    """All shards of a job.

    Parameters
    ----------
    job
        What they are told of it.
    leader_epoch
        Gives the epoch of this coordinator's leadership, which may rise.
    away
        Whether the life at a place is known to be over: then nobody waits for its answer.
    snapshots
        Folder of the run's snapshot sets, which all shards reach: they write and read sets below it alone.
    run_id
        Of the run that is led.

    Attributes
    ----------
    placement
        Where the shards are.
    meanwhile
        Called now and then while shards write or read files, which may take long; may tell shards something.
    """

    def __init__(
        self,
        job: Job,
        leader_epoch: Callable[[], int],
        away: Callable[[ShardPlacement], bool],
        snapshots: Path,
        run_id: int = 0,
    ) -> None:
        self._run_id = run_id
        self.name = job.name
        self._leader_epoch = leader_epoch
        self.placement: Placement | None = None
        self.on_idle: Callable[[], None] = lambda: None
        self._job = job
        self._away = away
        self._snapshots = snapshots
        self._commands = 0
        self._channels: dict[str, grpc.Channel] = {}

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()

    def _stub(self, place: ShardPlacement) -> stubs.ParametersStub:
        if place.address not in self._channels:
            in_use = {place.address for place in self._places()}
            for gone in [address for address in self._channels if address not in in_use][:-_SPARE_CHANNELS]:
                self._channels.pop(gone).close()
            self._channels[place.address] = open_channel(place.address, "ps")
        return stubs.ParametersStub(self._channels[place.address])

    def _command(self) -> wire.Command:
        self._commands += 1
        return wire.Command(leader_epoch=self._leader_epoch(), id=self._commands, run_id=self._run_id)

    def _places(self) -> Sequence[ShardPlacement]:
        return self.placement.places if self.placement is not None else ()

    def _configure(self, build: Callable[[ShardPlacement], wire.ConfigureRequest]) -> list[wire.ConfigureReply]:
        return [self._configure_one(place, build(place)) for place in self._places()]

    def _configure_one(
        self, place: ShardPlacement, request: wire.ConfigureRequest, timeout_s: float = TIMEOUT_S
    ) -> wire.ConfigureReply:
        request.command.CopyFrom(self._command())
        reply: wire.ConfigureReply = self._call(place, "Configure", request, timeout_s)
        return reply

    def _call(self, place: ShardPlacement, method: str, request: Any, timeout_s: float) -> Any:
        return self._answer(place, self._begin(place, method, request, timeout_s))

    def _begin(self, place: ShardPlacement, method: str, request: Any, timeout_s: float) -> Any:
        return getattr(self._stub(place), method).future(request, timeout=timeout_s)

    def _answer(
        self, place: ShardPlacement, call: Any, *others: ShardPlacement, meanwhile: Callable[[], None] = lambda: None
    ) -> Any:
        """A call's answer; given up where the shard is known to be dead, for a stopped machine never answers.

        `others` are those whom it needs for the answer; `meanwhile` is done now and then.
        """
        with named_errors(f"shard {place.shard} at {place.address}"):
            while True:
                try:
                    return call.result(timeout=_LOOK_S)
                except grpc.FutureTimeoutError:
                    for one in (place, *others):
                        if self._away(one):
                            call.cancel()
                            raise Unavailable(f"shard {one.shard} at {one.address}: is dead") from None
                    meanwhile()

    def assign(self, placement: Placement) -> None:
        """Give every shard its segments, its rule and its life."""
        self.placement = placement
        calls = [(place, self._begin_to_assign(placement, place)) for place in placement.places]
        for place, call in calls:
            self._answer(place, call)

    def _begin_to_assign(self, placement: Placement, place: ShardPlacement, timeout_s: float = ASSIGN_S) -> Any:
        """Begin the call that gives a shard its segments; it compiles, or loads, its loops before it answers."""
        given = assignment(self._job, placement, place)
        request = wire.ConfigureRequest(command=self._command(), job=self.name, assignment=given)
        request.assignment.snapshots = str(self._snapshots)
        request.shard_epoch, request.placement_epoch = place.shard_epoch, placement.epoch
        return self._begin(place, "Configure", request, timeout_s)

    def recover(self, revive: RecoverShard) -> str | None:
        """Bring one shard back in another process; it is not in the placement yet.

        Returns the set that it has come back with: an older one where that asked for is damaged, None without sets.

        Raises
        ------
        SnapshotError
            No set is whole.
        """
        assert self.placement is not None
        place = revive.place
        if revive.promoted:
            return self._promote(revive)
        self._answer(place, self._begin_to_assign(self.placement, place))
        if revive.set_id is None:
            return None
        if revive.membership is not None:
            self._configure_one(place, shard_commands.membership(revive.membership))
        set_id = self._restore_newest(place, revive.set_id) if place.count else revive.set_id
        fenced, settled = shard_commands.lives(revive.fenced), shard_commands.lives(revive.settled)
        self._configure_one(place, wire.ConfigureRequest(fenced=fenced, forgotten=settled, ready=True))
        return set_id

    def _promote(self, revive: RecoverShard) -> str | None:
        """Have a follower be the shard: it has all that was acknowledged."""
        place = revive.place
        runs = [segments.SegmentRun(first=first, count=count) for first, count in place.runs]
        request = wire.ConfigureRequest(
            job=self.name,
            shard_epoch=place.shard_epoch,
            promoted=True,
            holdings=wire.Holdings(runs=runs),
            fenced=shard_commands.lives(revive.fenced),
            forgotten=shard_commands.lives(revive.settled),
            ready=True,
        )
        if revive.membership is not None:
            request.membership.CopyFrom(shard_commands.membership(revive.membership).membership)
        self._configure_one(place, request)
        return revive.set_id

    def follow(self, action: AttachFollower) -> bool:
        """Have a process follow a shard; False where that process does not answer.

        Raises
        ------
        Unreachable
            The shard does not.
        """
        assert self.placement is not None
        leader = next(place for place in self._places() if place.shard == action.shard)
        follower = ShardPlacement(action.shard, action.address, action.shard_epoch, ())
        try:
            self._answer(follower, self._begin_to_assign(self.placement, follower, FOLLOWER_S))
        except Unavailable:
            return False
        chain = wire.Chain(
            epoch=action.epoch,
            address=action.address,
            shard_epoch=action.shard_epoch,
            patience_s=self._job.deadlines.lease_s,
        )
        self._configure_one(leader, wire.ConfigureRequest(chain=chain))
        return True

    def stand_alone(self, action: DetachFollower) -> None:
        """Tell a shard that nobody follows it."""
        for place in self._places():
            if place.shard == action.shard:  # else it has left
                self._configure_one(place, wire.ConfigureRequest(chain=wire.Chain(epoch=action.epoch)))

    def _restore_newest(self, place: ShardPlacement, set_id: str) -> str:
        """Load one shard from this set, or from the newest before it that is whole; sets that are not are set aside."""
        torn: list[str] = []
        candidates = complete_until(self._snapshots, set_id)
        for candidate in candidates:
            request = wire.RestoreRequest(**self._set(candidate))
            try:
                self._answer(place, self._begin(place, "Restore", request, SNAPSHOT_S), meanwhile=self.on_idle)
            except SnapshotError as error:
                torn.append(str(error))
                continue
            for damaged, reason in zip(candidates, torn, strict=False):
                announce(f"snapshot set {damaged} is not whole and was set aside; going on from {candidate}: {reason}")
                quarantine_set(self._snapshots, damaged)
            return candidate
        raise SnapshotError("; ".join(torn))

    def move(self, move: MigrateSegments) -> int:
        """Let segments go from one shard to another; returns how many bytes of numbers that were.

        Neither serves them until the placement has the move and both are told (`hold`), whatever this raises: a client
        that knew them there before would else push to the taking shard, and a next coordinator undo that push.

        Raises
        ------
        Unreachable, Moved, Refused
            One of the two is dead, or in another life; or it cannot be done.
        """
        places = {place.shard: place for place in self._places()}
        giver, taker = places[move.giver], places[move.taker]
        request = wire.GiveRequest(
            command=self._command(),
            target=self._target(giver),
            segments=move.segments,
            address=taker.address,
            shard_epoch=taker.shard_epoch,
        )
        call = self._begin(giver, "Give", request, self._job.deadlines.progress_s)
        sent = int(self._answer(giver, call, taker).bytes)
        life = self._configure_one(taker, wire.ConfigureRequest()).shard_epoch
        if life != taker.shard_epoch:  # what came is gone with the life that took it; the giving shard has it still
            raise Moved(f"shard {taker.shard} at {taker.address}: is in epoch {life}, not {taker.shard_epoch}")
        return sent

    def set_ownership(self, shards: Collection[int]) -> None:
        """Tell these shards, all that answer, what they hold; one that is dead will come back with it."""
        silent: Unavailable | None = None
        for place in self._places():
            if place.shard in shards and not self._away(place):
                try:
                    self._configure_one(place, shard_commands.holdings(place.runs))
                except Unavailable as error:
                    silent = error if not self._away(place) else silent
        if silent is not None:
            raise silent

    def decommission(self, dismiss: DecommissionShard) -> None:
        """Let a shard end that has no place."""
        self._configure_one(ShardPlacement(dismiss.shard, dismiss.address, 0, ()), wire.ConfigureRequest(stop=True))

    def make_ready(self) -> None:
        """Let the shards accept pushes by the rule."""
        self._configure(lambda place: wire.ConfigureRequest(ready=True))

    def set_membership(self, membership: SetMembership) -> int:
        """Say who takes part in which clock; returns the highest clock that was pushed to any shard."""
        return max(
            (reply.clock for reply in self._configure(lambda place: shard_commands.membership(membership))), default=0
        )

    def fence(self, incarnation: int) -> tuple[int, int]:
        """Refuse a life and read what it had pushed into "w": (lowest, highest) over all segments."""
        self._configure(lambda place: wire.ConfigureRequest(fenced=shard_commands.lives([incarnation])))
        return self.ledgers().get(incarnation, (0, 0))

    def forget(self, incarnation: int) -> None:
        """Drop a life's ledger rows."""
        self._configure(lambda place: wire.ConfigureRequest(forgotten=shard_commands.lives([incarnation])))

    def ledgers(self) -> dict[int, tuple[int, int]]:
        """Per incarnation the lowest and the highest number applied to "w", over all segments of all shards."""
        found: dict[int, list[tuple[int, int]]] = {}
        holders = [place for place in self._places() if place.count]
        for place in holders:
            for row in self.stats(place, ledgers=True).ledgers:
                if row.vector == PARAMETERS:
                    found.setdefault(row.pusher.incarnation, []).append((row.lowest, row.highest))
        return {
            incarnation: (
                min(low for low, _ in rows) if len(rows) == len(holders) else 0,
                max(high for _, high in rows),
            )
            for incarnation, rows in found.items()
        }

    def stats(self, place: ShardPlacement, ledgers: bool = False) -> wire.StatsReply:
        """Counters of one shard."""
        reply: wire.StatsReply = self._call(
            place, "Stats", wire.StatsRequest(job=self.name, ledgers=ledgers), TIMEOUT_S
        )
        return reply

    def snapshot(self, set_id: str) -> dict[str, int]:
        """Have every shard write its part of a set; the shard epoch of each part by its manifest's name.

        Raises
        ------
        Moved
            Another life answers at the address of a shard.
        """
        replies = self._each("Snapshot", lambda: wire.SnapshotRequest(**self._set(set_id)))
        for place, reply in zip(self._places(), replies, strict=True):
            if reply.shard_epoch != place.shard_epoch:
                raise Moved(
                    f"shard {place.shard} at {place.address}: is in epoch {reply.shard_epoch}, not {place.shard_epoch}"
                )
        return {reply.manifest: reply.shard_epoch for reply in replies}

    def restore(self, set_id: str, again: bool = False) -> None:
        """Have every shard load its segments from a set; `again`: in lives that go on."""
        self._each("Restore", lambda: wire.RestoreRequest(**self._set(set_id), again=again))

    def _set(self, set_id: str) -> dict[str, Any]:
        """What a request that writes or reads a set names."""
        folder = str(self._snapshots / set_id)
        return {"command": self._command(), "job": self.name, "folder": folder, "set": set_id}

    def run(self, program: Sequence[Operation]) -> list[float]:
        """Run a program on every shard at the same time; their scalars put together in the order of the shards.

        A call that breaks is made again with the same command, which a shard carries out once.

        Raises
        ------
        Refused
            Some shard finds the program wrong; no shard has run it, for all hold the same vectors.
        Unreachable
            A shard is dead.
        """
        rows = program_to_wire(program)
        requests = [
            (place, wire.OperateRequest(command=self._command(), target=self._target(place), program=rows))
            for place in self._places()
        ]
        calls = [(place, request, self._begin(place, "Operate", request, SNAPSHOT_S)) for place, request in requests]
        parts = [self._operated(place, request, call) for place, request, call in calls]
        return together(program, parts)

    def _operated(self, place: ShardPlacement, request: wire.OperateRequest, call: Any) -> Sequence[float]:
        while True:
            try:
                scalars: Sequence[float] = self._answer(place, call).scalars
                return scalars
            except Unavailable:
                if self._away(place):
                    raise
                time.sleep(_LOOK_S)
                call = self._begin(place, "Operate", request, SNAPSHOT_S)

    def _target(self, place: ShardPlacement) -> wire.Target:
        return wire.Target(job=self.name, shard_epoch=place.shard_epoch, run_id=place.run_id)

    def _each(self, method: str, build: Callable[[], Any]) -> list[Any]:
        """Call all shards at the same time, then collect their answers."""
        calls = [(place, self._begin(place, method, build(), SNAPSHOT_S)) for place in self._places()]
        return [self._answer(place, call, meanwhile=self.on_idle) for place, call in calls]

    def stop(self, followers: Iterable[str] = ()) -> None:
        """Let every shard end, and those that follow, at these addresses; one that is gone is none of our business."""
        for place in [*self._places(), *(ShardPlacement(-1, address, 0, ()) for address in followers)]:
            request = wire.ConfigureRequest(command=self._command(), stop=True)
            try:
                self._stub(place).Configure(request, timeout=2.0)
            except grpc.RpcError:
                continue
