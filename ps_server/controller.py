"""Controller of a shard in a job: its job, epoch and segments, and the coordinator's commands that change them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from dbelief.checkpoint.object_sets import sets_at
from dbelief.checkpoint.set_files import SetFiles
from dbelief.checkpoint.set_storage import SetStorage
from dbelief.core.push import AppliedPush
from dbelief.errors import Moved, Rejected, Unavailable
from dbelief.process.clock import SystemClock
from dbelief.process.gc_control import collect, freeze
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.server.auth import must_be_in
from dbelief.rpc.wire.convert import program_from_wire
from dbelief.telemetry.metric_specs import HOTTEST
from dbelief.telemetry.metrics import Metrics

from . import snapshot
from .assignment import shard_of
from .hot_segments import HotSegments
from .programs import ProgramExecutor
from .replication.carry_stream import CarryStream
from .replication.link import LinkState, ReplicationLink
from .replication.migration import Arrival, Migration
from .replication.sender import FollowerMessages, FollowerSender
from .replication.wire import encode
from .store.concurrency import ThreadPool
from .store.shard import Shard

R = TypeVar("R")

REMEMBERED = 64
"""Number of replies that are stored for repeated commands."""

LOOK_AGAIN_S = 5.0
"""Longest single wait of a call for other processes, in seconds. The caller then looks up all shards and retries, until
its own deadline: a shard may have recovered meanwhile and be waiting for a message from that very caller.
"""

COMMAND_S = 1.0
"""Longest wait of a command for the follower, in seconds: the command that detaches it may be queued behind."""

STALL_TIMEOUT_S = 10.0
"""Time without progress after which a migration of segments is aborted, in seconds: commands block until it ends."""


def _at(hottest: HotSegments, rank: int, what: int) -> float:
    """A segment's number (0) or its pushes per second (1) at this rank; NaN where fewer segments are ranked."""
    top = hottest.top()
    return float(top[rank][what]) if rank < len(top) else math.nan


def _order(command: wire.Command) -> tuple[int, int]:
    """Order of coordinator commands: the later of two is greater."""
    return command.leader_epoch, command.id


class ShardController:
    """One incarnation of one shard.

    Parameters
    ----------
    deadline_s
        Longest wait of a call for the staleness barrier, in seconds.
    record
        Called for each applied push when the job configures a log.

    Attributes
    ----------
    stopped
        Set when the coordinator reports that the job is over.
    job, index, epoch
        "", -1 and 0 until they are assigned.
    run_id
        Of the run that this process has joined: calls and commands of another are refused. 0: it has joined none.
    shard
        None until segments are assigned, and for the moment in which an assignment replaces them.
    link
        State of the replication link to the follower.
    leads_until_s
        Returns until when no follower can be promoted in its place, by the monotonic clock.
    threads
        Thread pool for the segments of one request.
    turn
        Held while a small message is processed: one at a time.
    """

    def __init__(
        self,
        metrics: Metrics,
        deadline_s: float,
        record: Callable[[AppliedPush], None] | None,
    ) -> None:
        self.stopped = runtime.event()
        self.job = ""
        self.index = -1
        self.run_id = 0
        self.epoch = 0
        self.deadline_s = deadline_s
        self.shard: Shard | None = None
        self._metrics = metrics
        self._record = record
        self._leader_epoch = 0
        self._held_by = 0, 0  # the last command that set the segments it owns
        self.link = ReplicationLink()
        self.leads_until_s: Callable[[], float] = lambda: math.inf
        self.threads = ThreadPool()
        self.turn = runtime.lock()
        self._follower: FollowerSender | None = None
        self._messages: FollowerMessages | None = None  # to the follower
        self._programs: ProgramExecutor | None = None
        self._migration: Migration | None = None
        self._sets: SetStorage | None = None
        self._replies: OrderedDict[int, Any] = OrderedDict()  # the last replies, by command id of the current leader
        self._lock = runtime.lock()
        self._register_metrics()

    def _register_metrics(self) -> None:
        """Register the segment metrics; they are computed when they are scraped, with no extra counters."""
        metrics = self._metrics
        hottest = HotSegments(lambda: shard.taken() if (shard := self.shard) else {}, HOTTEST, SystemClock())
        metrics.add_callback("lock_waits_total", lambda: shard.waits()[0] if (shard := self.shard) else 0)
        metrics.add_callback("lock_wait_seconds_total", lambda: shard.waits()[1] if (shard := self.shard) else 0.0)
        for rank in range(HOTTEST):
            metrics.hottest_segment.labels(str(rank + 1)).set_function(partial(_at, hottest, rank, 0))
            metrics.hottest_pushes_per_second.labels(str(rank + 1)).set_function(partial(_at, hottest, rank, 1))
        metrics.hottest_share.set_function(hottest.share)

    @property
    def error_prefix(self) -> str:
        """Prefix of the reason of every refusal."""
        return f"job {self.job!r}, shard {self.index}: " if self.job else "a shard without a job: "

    @property
    def has_segments(self) -> bool:
        """Whether it serves any segments."""
        shard = self.shard
        return shard is not None and bool(shard.segments)

    @property
    def pushes(self) -> int:
        """Number of segment pushes that this incarnation has applied."""
        shard = self.shard
        return shard.counters.pushes if shard is not None else 0

    def require_shard(self) -> Shard:
        """The shard, once it has segments.

        Raises
        ------
        Moved
            No segments are assigned yet; the caller addresses an earlier incarnation at this address.
        """
        shard = self.shard
        if shard is None:
            raise Moved("no segments are assigned to it yet")
        return shard

    def shard_for(self, target: wire.Target) -> Shard:
        """The shard, if the call is meant for this job and this incarnation.

        Raises
        ------
        Moved
            The epoch differs: a restarted process has its old address before it has its new incarnation.
        Rejected
            The call is for another job, or from another run of it.
        """
        if self.job and target.job != self.job:
            raise Rejected(f"a call for job {target.job!r} is not for this shard")
        if self.run_id:
            must_be_in(self.run_id, target.run_id)
        if target.shard_epoch != self.epoch:
            raise Moved(f"is in epoch {self.epoch}, not {target.shard_epoch}")
        return self.require_shard()

    # -- commands of the coordinator ---------------------------------------------------------------------

    def _check_leader(self, command: wire.Command) -> None:
        """Accept a command of the current leader.

        Raises
        ------
        Rejected
            A later leader is known, or the command belongs to another run of the job.
        """
        if self.run_id:
            must_be_in(self.run_id, command.run_id)
        if command.leader_epoch < self._leader_epoch:
            raise Rejected(f"leader epoch {command.leader_epoch} is over, {self._leader_epoch} leads")
        if command.leader_epoch > self._leader_epoch:
            self._leader_epoch = command.leader_epoch
            self._replies.clear()

    def _once(self, command: wire.Command, execute: Callable[[], R]) -> R:
        """Execute a command of the current leader; repeated, it returns the first reply. The lock is held.

        A leader repeats only its latest command.
        """
        self._check_leader(command)
        if command.id not in self._replies:
            self._replies[command.id] = execute()
            if len(self._replies) > REMEMBERED:
                self._replies.popitem(last=False)
        reply: R = self._replies[command.id]
        return reply

    def configure(self, request: wire.ConfigureRequest) -> wire.ConfigureReply:
        """Change what the request names; a repeated command returns the first reply."""
        with self._lock:
            return self._once(request.command, lambda: self._configure(request))

    def _configure(self, request: wire.ConfigureRequest) -> wire.ConfigureReply:
        clock = 0
        if request.job:
            self.job = request.job
        if request.HasField("assignment"):
            if 0 < request.shard_epoch < self.epoch:  # a delayed command
                raise Moved(f"is in epoch {self.epoch}, not {request.shard_epoch}")
            self._assign(request)
        elif request.shard_epoch:
            self.epoch = max(self.epoch, request.shard_epoch)
        if request.promoted and self._migration is not None:
            self._migration.promote(self.epoch)
        if request.HasField("holdings"):
            self._held_by = _order(request.command)
            self._commit_segments(request.holdings)
        if request.HasField("membership"):
            rounds = [(row.clock, row.replicas) for row in request.membership.rounds]
            clock = self.require_shard().set_membership(request.membership.member_epoch, rounds)
        if request.fenced:
            self.require_shard().fence(pusher.incarnation for pusher in request.fenced)
            self.wait_replicated(COMMAND_S)  # its ledgers are read next, and their contents must not be lost
        if request.forgotten:
            self.require_shard().forget(pusher.incarnation for pusher in request.forgotten)
            collect()  # their connections are closed
        if request.HasField("ready") and request.ready:
            self.require_shard().make_ready()
        if request.HasField("link"):
            self._attach_follower(request.link)
        if request.stop:
            self.stopped.set()
        held = len(self.shard.segments) if self.shard else 0
        return wire.ConfigureReply(shard_epoch=self.epoch, segments=held, clock=clock)

    def _commit_segments(self, holdings: wire.Holdings) -> None:
        shard = self.require_shard()
        assert self._migration is not None
        count = sum(run.count for run in holdings.runs)
        if count > self._migration.most:
            raise Moved(f"has {self._migration.most} segments, and cannot hold {count}")
        self.link.lose(self.link.epoch, "it has other segments now")
        self._migration.commit([index for run in holdings.runs for index in range(run.first, run.first + run.count)])
        self._export_size(shard)

    def _attach_follower(self, command: wire.FollowerLink) -> None:
        """Attach a new follower, or detach the present one, as the coordinator commands."""
        shard = self.require_shard()
        if command.epoch <= self.link.epoch:
            return
        self.link.lose(self.link.epoch, "another link begins")  # so that no record is appended in its epoch any more
        for segment in shard.segments.values():
            with segment.lock:
                segment.journal = None  # until the follower has a copy
        self.link.begin(command.epoch, followed=bool(command.address))
        if self._follower is not None:
            self._follower.close()
            self._follower = self._messages = None
        if command.address:
            self._messages = FollowerMessages(shard, self.link, self.job, command.shard_epoch, self.run_id)
            self._follower = FollowerSender(self._messages, command.address, command.timeout_s or math.inf)

    @property
    def replicates(self) -> bool:
        """Whether there is a follower, or there is to be one."""
        return self.link.state is not LinkState.UNREPLICATED

    def wait_replicated(self, patience_s: float = LOOK_AGAIN_S, records: int | None = None) -> None:
        """Wait until the follower, if there is one, has acknowledged all changes so far.

        `records`: as `replicate` has returned it, and only the changes sent by then; None: sends them first.

        Raises
        ------
        Moved
            Timeout.
        """
        if self.replicates:
            if records is None:
                records = self.replicate()
            self.link.wait(records, min(self.deadline_s, patience_s), self._messages)

    def replicate(self) -> int:
        """Send the follower, if there is one, all changes so far; returns their number, for `wait_replicated`.

        Cost: that of a message to a follower on this host.
        """
        records = self.link.appended
        if (messages := self._messages) is not None:
            messages.send()
        return records

    def confirm_leads(self, shard: Shard) -> None:
        """Check before the reply to a read that no follower had been promoted when its numbers were read.

        Cost: a comparison, while heartbeats are answered. A shard that was suspended, leaves, or cannot reach the
        coordinator sends its follower a record without effect instead, and waits until the follower has it: a promoted
        one refuses.

        Raises
        ------
        Moved
            The follower does not have it in time.
        """
        if not self.replicates or runtime.monotonic() < self.leads_until_s():
            return
        shard.append_empty_record()
        self.wait_replicated()

    def close(self) -> None:
        """Stop the background threads; calls that wait for the follower fail."""
        self.link.close()
        if self._follower is not None:
            self._follower.close()
        if self._programs is not None:
            self._programs.close()
        self.threads.close()

    def give(self, request: wire.GiveRequest) -> wire.GiveReply:
        """Migrate segments to another shard; a repeated command returns the first reply.

        Raises
        ------
        Moved
            The other shard receives nothing, or ends the stream early, which may be transient.
        Rejected
            It refuses the segments.
        """
        with self._lock:
            return self._once(request.command, lambda: self._give(request))

    def _give(self, request: wire.GiveRequest) -> wire.GiveReply:
        shard, command = self.shard_for(request.target), request.command
        assert self._migration is not None
        began_s, where = runtime.monotonic(), f"shard at {request.address}"
        opening = wire.CarryOpening(
            job=self.job, shard_epoch=request.shard_epoch, command=command, run_id=command.run_id
        )
        try:
            with closing(CarryStream(request.address, f"carry: {where}", STALL_TIMEOUT_S)) as stream:
                stream.give([wire.CarryRequest(opening=opening).SerializeToString()])
                sent = self._migration.send(
                    request.segments, f"the {where}", lambda carried: stream.give(encode(carried))
                )
                stream.finish()
        except Unavailable as error:
            raise Moved(str(error)) from error
        self._export_size(shard)
        return wire.GiveReply(bytes=sent, seconds=runtime.monotonic() - began_s)

    def migration_for(self, opening: wire.CarryOpening) -> Arrival:
        """Receiver of the segments that another shard migrates here, or replicates to this follower.

        Raises
        ------
        Rejected, Moved
            They are for another job or incarnation, or their command is older than the last ownership command.
        """
        self.shard_for(wire.Target(job=opening.job, shard_epoch=opening.shard_epoch, run_id=opening.run_id))
        assert self._migration is not None
        arrival = self._migration.arrival()  # first: a command executed meanwhile invalidates it
        if opening.HasField("command") and _order(opening.command) < self._held_by:
            raise Moved(f"command {opening.command.id} is over: a later one has said which segments it holds")
        return arrival

    def operate(self, request: wire.OperateRequest) -> wire.OperateReply:
        """Run a program over the vectors; a repeated command returns the first reply."""
        with self._lock:
            reply = self._once(request.command, lambda: self._operate(request))
            self.wait_replicated(COMMAND_S)
            return reply

    def _operate(self, request: wire.OperateRequest) -> wire.OperateReply:
        self.shard_for(request.target)
        assert self._programs is not None
        return wire.OperateReply(scalars=self._programs.run(program_from_wire(request.program)))

    def _assign(self, request: wire.ConfigureRequest) -> None:
        """Replace all segments, in the epoch that the request names; a refused assignment leaves both."""
        assignment = request.assignment
        shard = shard_of(assignment, self._record)
        freeze()
        self.shard = None  # before the epoch: no call of the new incarnation may reach the segments of an earlier one
        self.epoch = max(self.epoch, request.shard_epoch)
        if self._migration is not None:
            self._migration.end()  # after the epoch: no further stream of an earlier incarnation may begin
        if self._programs is not None:
            self._programs.close()
        self._programs = ProgramExecutor(shard)
        self._migration = Migration(shard)
        self._sets = sets_at(assignment.snapshots) if assignment.snapshots else None
        if assignment.HasField("shard"):  # this command may arrive before the reply to the Join
            self.index = assignment.shard
        if assignment.HasField("progress_s"):
            self.deadline_s = assignment.progress_s
        self.shard = shard  # last: calls are served from now on
        self._export_size(shard)

    def _export_size(self, shard: Shard) -> None:
        self._metrics.segments.set(len(shard.segments))
        self._metrics.parameters.set(shard.size)

    def _set_files(self, place: str) -> SetFiles:
        """The files of a set.

        Raises
        ------
        Moved
            No assignment has been received.
        Rejected
            It is not below the folder, or prefix, that the assignment names: no command accesses files elsewhere.
        """
        self.require_shard()
        files = self._sets.files_at(place) if self._sets is not None else None
        if files is None:
            where = self._sets.where if self._sets is not None else "any folder"
            raise Rejected(f"{place} is not below {where}, where this job's snapshot sets are")
        return files

    def snapshot(self, request: wire.SnapshotRequest) -> wire.SnapshotReply:
        """Write this shard's file of a set; other commands are executed meanwhile."""
        with self._lock:  # segments and incarnation belong together; none of a later leader's commands is in between
            self._check_leader(request.command)
            epoch, files, shard = self.epoch, self._set_files(request.folder), self.require_shard()
        began = runtime.monotonic()
        saved = snapshot.save(shard, files, self.index, request.set, self.job, epoch)
        seconds = runtime.monotonic() - began
        self._metrics.snapshot_seconds.observe(seconds)
        written_s = runtime.monotonic()
        self._metrics.snapshot_age_seconds.set_function(lambda: runtime.monotonic() - written_s)
        if self._sets is not None and self._sets.disk is not None:
            self._metrics.watch_disk(self._sets.disk)
        return wire.SnapshotReply(
            manifest=saved.manifest.name, bytes=saved.nbytes, seconds=seconds, shard_epoch=epoch, needs=saved.needs
        )

    def restore(self, request: wire.RestoreRequest) -> wire.RestoreReply:
        """Load this shard's segments from a set.

        Raises
        ------
        Moved
            The store of the sets does not answer, which may pass: the coordinator sends the command again.
        """
        with self._lock:  # a retry waits for the first attempt; no program runs meanwhile
            self._check_leader(request.command)
            files = self._set_files(request.folder)
            self.link.lose(self.link.epoch, "it was restored from a snapshot set")
            try:
                loaded = snapshot.restore(
                    self.require_shard(), files, request.set, request.job, self.epoch, request.rollback
                )
            except Unavailable as error:
                raise Moved(str(error)) from error
        return wire.RestoreReply(segments=loaded)
