"""Client for the coordinator's commands to shards: sent with the leader's epoch, in order. Uses the wire types."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import grpc

from dbelief.checkpoint.set_storage import SetStorage, complete_until
from dbelief.core.layout import Kind
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import PARAMETERS, LedgerRow
from dbelief.core.vector_program import Operation, together
from dbelief.errors import Moved, SnapshotError, Unavailable
from dbelief.job import Job
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import named_errors, open_channel
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.wire.convert import program_to_wire

from ..core import effects
from ..core.ledgers import Applied, merge_ledgers
from .shard_commands import assignment, holdings, membership, pushers

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Timeout in seconds of a command; writing or reading a snapshot has `SNAPSHOT_S`."""
ASSIGN_S = 120.0
"""Timeout of a segment assignment: the shard first compiles, which takes seconds without a cache."""
SNAPSHOT_S = 600.0
FOLLOWER_S = 2.0
"""Timeout of the assignment of a follower; short, as other actions may be queued for the calling thread."""
_CHECK_S = 0.2
_SPARE_CHANNELS = 8
"""Addresses outside the placement, newest first, whose channels stay open: recovered shards, followers."""


class ShardClient:
    """Client for all shards of a job.

    Parameters
    ----------
    job
        The job; its settings go into assignments.
    leader_epoch
        Returns the epoch of this coordinator's leadership, which may rise.
    is_unavailable
        Whether the incarnation at a place is known to have ended: calls to it are then aborted.
    sets
        The run's snapshot sets, which all shards reach too: they write and read files only below its place.
    run_id
        Id of the run.

    Attributes
    ----------
    placement
        Places of the shards.
    on_idle
        Called at intervals while shards write or read files, which may take long; it may send commands to shards.
    """

    def __init__(
        self,
        job: Job,
        leader_epoch: Callable[[], int],
        is_unavailable: Callable[[ShardPlacement], bool],
        sets: SetStorage,
        run_id: int = 0,
    ) -> None:
        self._run_id = run_id
        self.name = job.name
        self._leader_epoch = leader_epoch
        self.placement: Placement | None = None
        self.on_idle: Callable[[], None] = lambda: None
        self._job = job
        self._is_unavailable = is_unavailable
        self._sets = sets
        self._commands = 0
        self._channels: dict[str, grpc.Channel] = {}

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()

    def _stub(self, place: ShardPlacement) -> stubs.ParametersStub:
        if place.address not in self._channels:
            in_use = {place.address for place in self._places()}
            for unused in [address for address in self._channels if address not in in_use][:-_SPARE_CHANNELS]:
                self._channels.pop(unused).close()
            self._channels[place.address] = open_channel(place.address, "ps")
        return stubs.ParametersStub(self._channels[place.address])

    def _command(self) -> wire.Command:
        self._commands += 1
        return wire.Command(leader_epoch=self._leader_epoch(), id=self._commands, run_id=self._run_id)

    def _places(self) -> Sequence[ShardPlacement]:
        return self.placement.places if self.placement is not None else ()

    def _configure(self, **fields: Any) -> list[wire.ConfigureReply]:
        return [self._configure_one(place, **fields) for place in self._places()]

    def _configure_one(self, place: ShardPlacement, **fields: Any) -> wire.ConfigureReply:
        request = wire.ConfigureRequest(command=self._command(), **fields)
        reply: wire.ConfigureReply = self._answer(place, self._begin(place, "Configure", request, TIMEOUT_S))
        return reply

    def _begin(self, place: ShardPlacement, method: str, request: Any, timeout_s: float) -> Any:
        return getattr(self._stub(place), method).future(request, timeout=timeout_s)

    def _answer(
        self, place: ShardPlacement, call: Any, *others: ShardPlacement, meanwhile: Callable[[], None] = lambda: None
    ) -> Any:
        """Reply of a call; aborted where the shard is known to have failed, as a stopped machine never replies.

        `others`: further shards that the reply depends on; `meanwhile`: called at intervals.
        """
        with named_errors(f"shard {place.shard} at {place.address}"):
            while True:
                try:
                    return call.result(timeout=_CHECK_S)
                except grpc.FutureTimeoutError:
                    for one in (place, *others):
                        if self._is_unavailable(one):
                            call.cancel()
                            raise Unavailable(f"shard {one.shard} at {one.address}: has failed") from None
                    meanwhile()

    def assign(self, placement: Placement) -> None:
        """Send every shard its segments, its update rule and its shard epoch."""
        self.placement = placement
        calls = [(place, self._begin_to_assign(placement, place)) for place in placement.places]
        for place, call in calls:
            self._answer(place, call)

    def _begin_to_assign(self, placement: Placement, place: ShardPlacement, timeout_s: float = ASSIGN_S) -> Any:
        """Start the call that assigns a shard its segments; the shard compiles or loads its loops before it replies."""
        given = assignment(self._job, placement, place)
        request = wire.ConfigureRequest(command=self._command(), job=self.name, assignment=given)
        request.assignment.snapshots = str(self._sets.where)
        request.shard_epoch, request.placement_epoch = place.shard_epoch, placement.epoch
        return self._begin(place, "Configure", request, timeout_s)

    def recover(self, action: effects.RecoverShard) -> tuple[str | None, dict[int, int]]:
        """Recover one shard in another process, before it enters the placement.

        Returns
        -------
        set_id, lowest
            The set that was restored: an older one where the requested set is damaged, None without sets. Where it was,
            by incarnation of a pusher: number of its last push that every segment of the shard has.

        Raises
        ------
        SnapshotError
            No set is complete.
        """
        assert self.placement is not None
        place = action.place
        members = membership(action.membership) if action.membership is not None else None
        rest = {"fenced": pushers(action.fenced), "forgotten": pushers(action.settled), "ready": True}
        if action.promoted:  # it was the follower, and has all data that was acknowledged
            own = {"shard_epoch": place.shard_epoch, "holdings": holdings(place.runs), "membership": members}
            self._configure_one(place, job=self.name, promoted=True, **own, **rest)
            return action.set_id, {}
        self._answer(place, self._begin_to_assign(self.placement, place))
        if action.set_id is None:
            return None, {}
        if members is not None:
            self._configure_one(place, membership=members)
        set_id, lowest = action.set_id, dict[int, int]()
        if place.count:
            set_id = self._restore_newest(place, action.set_id)
            rows = self._applied(place)  # before they are forgotten
            lowest = {incarnation: row.lowest.sequence for incarnation, row in rows}
        self._configure_one(place, **rest)
        return set_id, lowest

    def attach_follower(self, action: effects.AttachFollower) -> bool:
        """Attach a follower to a shard; False if the follower does not reply.

        Raises
        ------
        Unavailable
            The shard does not reply.
        """
        assert self.placement is not None
        leader = next(place for place in self._places() if place.shard == action.shard)
        follower = ShardPlacement(action.shard, action.address, action.shard_epoch, ())
        try:
            self._answer(follower, self._begin_to_assign(self.placement, follower, FOLLOWER_S))
        except Unavailable:
            return False
        chain = wire.FollowerLink(
            epoch=action.epoch,
            address=action.address,
            shard_epoch=action.shard_epoch,
            timeout_s=self._job.deadlines.lease_s,
        )
        self._configure_one(leader, link=chain)
        return True

    def detach_follower(self, action: effects.DetachFollower) -> None:
        """Notify a shard that it has no follower."""
        for place in self._places():
            if place.shard == action.shard:  # else it has left
                self._configure_one(place, link=wire.FollowerLink(epoch=action.epoch))

    def _restore_newest(self, place: ShardPlacement, set_id: str) -> str:
        """Load one shard from this set, or the newest complete one before it; damaged sets are quarantined."""
        errors: list[str] = []
        candidates = complete_until(self._sets, set_id)
        for candidate in candidates:
            request = wire.RestoreRequest(**self._set(candidate))
            try:
                self._answer(place, self._begin(place, "Restore", request, SNAPSHOT_S), meanwhile=self.on_idle)
            except SnapshotError as error:
                errors.append(str(error))
                continue
            for damaged, reason in zip(candidates, errors, strict=False):
                log.warning(f"snapshot set {damaged} is damaged and was quarantined; restoring {candidate}: {reason}")
                self._sets.quarantine(damaged)
            return candidate
        raise SnapshotError("; ".join(errors))

    def migrate(self, move: effects.MigrateSegments) -> int:
        """Migrate segments from one shard to another; returns the payload bytes sent.

        Neither shard serves them until the placement has the migration and both got their ownership (`set_ownership`),
        whatever this raises. Otherwise a client that finds the segments at the receiver could push there, and the next
        coordinator could undo that push.

        Raises
        ------
        Unavailable, Moved, Rejected
            One of the two shards has failed, or has another incarnation; or the migration is not possible.
        """
        places = {place.shard: place for place in self._places()}
        sender, receiver = places[move.sender], places[move.receiver]
        request = wire.GiveRequest(
            command=self._command(),
            target=self._target(sender),
            segments=move.segments,
            address=receiver.address,
            shard_epoch=receiver.shard_epoch,
        )
        call = self._begin(sender, "Give", request, self._job.deadlines.progress_s)
        sent = int(self._answer(sender, call, receiver).bytes)
        # If the receiver restarted and lost them, the sender still has them.
        _check_epoch(receiver, self._configure_one(receiver).shard_epoch)
        return sent

    def set_ownership(self, shards: Collection[int]) -> None:
        """Send these shards, all that reply, their segments; a failed one gets them when it is recovered."""
        failure: Unavailable | None = None
        for place in self._places():
            if place.shard in shards and not self._is_unavailable(place):
                try:
                    self._configure_one(place, holdings=holdings(place.runs))
                except Unavailable as error:
                    failure = error if not self._is_unavailable(place) else failure
        if failure is not None:
            raise failure

    def decommission(self, action: effects.DecommissionShard) -> None:
        """Stop a shard that has no place."""
        self._configure_one(ShardPlacement(action.shard, action.address, 0, ()), stop=True)

    def make_ready(self) -> None:
        """Have the shards accept pushes by the update rule."""
        self._configure(ready=True)

    def set_membership(self, action: effects.SetMembership) -> int:
        """Send the members of each clock; returns one above the highest clock that was pushed to any shard."""
        replies = self._configure(membership=membership(action))
        return max((reply.clock for reply in replies), default=0)

    def fence(self, incarnations: Sequence[int]) -> dict[int, Applied]:
        """Fence incarnations; returns what each pusher had pushed into "w" before, as `ledgers` does."""
        self._configure(fenced=pushers(incarnations))
        return self.ledgers()

    def drop_ledgers(self, incarnations: Sequence[int]) -> None:
        """Drop the ledger rows of incarnations."""
        self._configure(forgotten=pushers(incarnations))

    def ledgers(self) -> dict[int, Applied]:
        """Per incarnation its pushes to "w", over all segments of all shards."""
        holders = [place for place in self._places() if self._pushed(place)]
        return merge_ledgers([dict(self._applied(place)) for place in holders])

    def _pushed(self, place: ShardPlacement) -> bool:
        """Whether replicas push to some segments of a shard; ledgers of the others count nothing."""
        assert self.placement is not None
        return any(self.placement.spans[index].kind is not Kind.FIXED for index in place.segments)

    def _applied(self, place: ShardPlacement) -> Iterator[tuple[int, Applied]]:
        """Incarnations, and the pushes to "w" that one shard counts."""
        for row in self.stats(place, ledgers=True).ledgers:
            if row.vector == PARAMETERS:
                lowest = LedgerRow(row.lowest, row.lease, row.position)
                yield row.pusher.incarnation, Applied(lowest, row.highest, row.lost)

    def stats(self, place: ShardPlacement, ledgers: bool = False) -> wire.StatsReply:
        """Counters of one shard."""
        request = wire.StatsRequest(job=self.name, ledgers=ledgers)
        reply: wire.StatsReply = self._answer(place, self._begin(place, "Stats", request, TIMEOUT_S))
        return reply

    def snapshot(self, set_id: str) -> dict[str, Any]:
        """Have every shard write its file of a set; returns what `SetStorage.commit` takes of it.

        Raises
        ------
        Moved
            Another incarnation replied at the address of a shard.
        """
        replies = self._each("Snapshot", lambda: wire.SnapshotRequest(**self._set(set_id)))
        for place, reply in zip(self._places(), replies, strict=True):
            _check_epoch(place, reply.shard_epoch)
        parts = {reply.manifest: reply.shard_epoch for reply in replies}
        return {"parts": parts, "needs": sorted({name for reply in replies for name in reply.needs})}

    def restore(self, set_id: str, again: bool = False) -> None:
        """Have every shard load its segments from a set; `again`: a rollback of running shards."""
        self._each("Restore", lambda: wire.RestoreRequest(**self._set(set_id), rollback=again))

    def _set(self, set_id: str) -> dict[str, Any]:
        """Common fields of requests that write or read a set."""
        place = str(self._sets.place(set_id))
        return {"command": self._command(), "job": self.name, "folder": place, "set": set_id}

    def run(self, program: Sequence[Operation]) -> list[float]:
        """Run a program on all shards in parallel; returns their scalars, combined in the order of the shards.

        A broken call is retried with the same command id, which a shard runs only once.

        Raises
        ------
        Rejected
            A shard finds the program invalid; no shard has run it, as all hold the same vectors.
        Unavailable
            A shard has failed.
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
                if self._is_unavailable(place):
                    raise
                runtime.sleep(_CHECK_S)
                call = self._begin(place, "Operate", request, SNAPSHOT_S)

    def _target(self, place: ShardPlacement) -> wire.Target:
        return wire.Target(job=self.name, shard_epoch=place.shard_epoch, run_id=place.run_id)

    def _each(self, method: str, build: Callable[[], Any]) -> list[Any]:
        """Call all shards in parallel, then collect their replies."""
        calls = [(place, self._begin(place, method, build(), SNAPSHOT_S)) for place in self._places()]
        return [self._answer(place, call, meanwhile=self.on_idle) for place, call in calls]

    def stop(self, others: Iterable[str] = ()) -> None:
        """Stop all shards, and those at these addresses; errors of processes that have exited are ignored."""
        known = {place.address for place in self._places()}
        more = (ShardPlacement(-1, address, 0, ()) for address in others if address not in known)
        for place in [*self._places(), *more]:
            request = wire.ConfigureRequest(command=self._command(), stop=True)
            try:
                self._stub(place).Configure(request, timeout=2.0)
            except grpc.RpcError:
                continue


def _check_epoch(place: ShardPlacement, epoch: int) -> None:
    """Raise `Moved` where another incarnation of a shard replied."""
    if epoch != place.shard_epoch:
        raise Moved(f"shard {place.shard} at {place.address}: is in epoch {epoch}, not {place.shard_epoch}")
