"""Real shards without a job: `dbelief ps` processes, and a minimal coordinator that they join."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dbelief.core.layout import assign_segments, make_segments, nominal_length
from dbelief.core.placement import Placement, ShardPlacement, runs_of
from dbelief.core.push import Push, Pusher
from dbelief.errors import RuntimeFailure, Unavailable
from dbelief.job.tables import TableSection
from dbelief.launch.child_process import ChildProcess, Way, terminate_all
from dbelief.rpc.channel import named_errors, open_channel
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import coordination_pb2 as coordination
from dbelief.rpc.pb import coordination_pb2_grpc as coordination_stubs
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server
from dbelief.rpc.wire.convert import spans_to_wire, table_to_wire
from dbelief.sparse.table import assign_buckets, number_tables

from .peers import DIRECT

JOB = "bench"
START_S = 60.0
"""Time limit for the start of the shards, in seconds."""
CALL_S = 60.0
BEAT_S = 20.0


class _Front(coordination_stubs.CoordinatorServicer):
    """Minimal coordinator service: it admits shards, and always reports a training job."""

    def __init__(self) -> None:
        self.joined: dict[int, str] = {}
        self.followed: set[int] = set()
        self.changed = threading.Condition()

    def Status(self, request: coordination.StatusRequest, context: Any) -> coordination.StatusReply:
        """Return the job's name."""
        return coordination.StatusReply(job=JOB, state=coordination.STATE_READY)

    def Join(self, request: coordination.JoinRequest, context: Any) -> coordination.JoinReply:
        """Assign the requested number."""
        with self.changed:
            self.joined[request.preferred_id] = request.address
            self.changed.notify_all()
        return coordination.JoinReply(
            id=request.preferred_id, incarnation=request.preferred_id + 1, leader_epoch=1, heartbeat_timeout_s=BEAT_S
        )

    def Beat(self, request: coordination.BeatRequest, context: Any) -> coordination.BeatReply:
        """Report that the job trains, and permit a shard to leave; heartbeats show whether followers are in sync."""
        if request.shard.in_sync:
            with self.changed:
                self.followed.add(request.id)
                self.changed.notify_all()
        return coordination.BeatReply(state=coordination.STATE_READY, member=True, may_leave=request.ending)


class Shards:
    """`count` shard processes that hold `size` parameters under one update rule, cut as in a job, initially 0.

    Parameters
    ----------
    folder
        For their logs.
    lock_free
        Whether pushes to one segment run concurrently.
    followed
        Whether each has a follower, a further process on this host.
    way
        Starts the processes.
    tables
        Tables beside the parameters, by name.

    Raises
    ------
    RuntimeFailure
        A shard does not start; the message includes its last log message.

    Attributes
    ----------
    tables
        The tables, numbered behind the parameters' segments.
    name
        Suffix that distinguishes their logs, and those of their workers.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        count: int = 1,
        rule: str = "adagrad",
        lock_free: bool = False,
        followed: bool = False,
        way: Way = DIRECT,
        tables: Mapping[str, TableSection] | None = None,
    ) -> None:
        self._lock_free = lock_free
        dense = make_segments([(0, size)], nominal_length(size, count))
        self.tables = number_tables(tables or {}, 0, len(dense))
        self.spans = (*dense, *(span for table in self.tables for span in table.spans(size)))
        rules = [one.rule.model_dump(exclude={"rate"}) for one in (tables or {}).values()]
        self._tables = [
            table_to_wire(table, segments.Rule(name=options.pop("name"), options=options))
            for table, options in zip(self.tables, rules, strict=True)
        ]
        self.rule: tuple[str, dict[str, float]] = rule, {}
        self.name = f"{size}-by-{rule}-on-{count}"
        self._commands = itertools.count(1)
        self._stubs: list[stubs.ParametersStub] = []
        with ExitStack() as stack:
            front = _Front()  # type: ignore[abstract]
            server = Server("127.0.0.1:0", lambda it: coordination_stubs.add_CoordinatorServicer_to_server(front, it))
            stack.callback(server.close)
            self.children = [
                ChildProcess(
                    f"ps-{number}",
                    ["ps", "--coordinator", server.address, "--number", str(number)],
                    folder / f"ps-{number}-of-{self.name}.log",
                    way=way,
                )
                for number in range(2 * count if followed else count)
            ]
            stack.callback(terminate_all, self.children)
            for child in self.children:
                child.start()
            self._await(front)
            owned = zip(assign_segments(dense, count), assign_buckets(self.tables, count), strict=True)
            runs = [runs_of([*range(first, first + held), *buckets]) for (first, held), buckets in owned]
            self.placement = Placement(
                1,
                self.spans,
                tuple(ShardPlacement(number, front.joined[number], 1, runs[number]) for number in range(count)),
            )
            for number in range(len(self.children)):
                channel = stack.enter_context(open_channel(front.joined[number], "ps"))
                self._stubs.append(stubs.ParametersStub(channel))
            self._fill(size)
            if followed:
                self._follow(front)
            self._stack = stack.pop_all()

    def _await(self, front: _Front) -> None:
        with front.changed:
            for _ in range(int(START_S / 0.1)):
                if len(front.joined) == len(self.children):
                    return
                if dead := [child for child in self.children if child.code is not None]:
                    raise RuntimeFailure(f"no shard to measure: {dead[0].fate()}")
                front.changed.wait(0.1)
        raise Unavailable(f"{len(front.joined)} of {len(self.children)} shards joined within {START_S:g} s")

    def _configure(self, number: int, **fields: Any) -> None:
        command = wire.Command(leader_epoch=1, id=next(self._commands))
        with named_errors(f"shard {number}"):
            self._stubs[number].Configure(wire.ConfigureRequest(command=command, **fields), timeout=CALL_S)

    def _fill(self, size: int) -> None:
        """Assign segments and initial values to the shards."""
        rule = segments.Rule(name=self.rule[0])
        for where in self.placement.places:
            assignment = wire.Assignment(
                segments=spans_to_wire(self.spans[index] for index in where.segments),
                rule=rule,
                lock_free=self._lock_free,
                snapshots="/",
                tables=self._tables,
            )
            self._configure(where.shard, job=JOB, shard_epoch=1, assignment=assignment)
        first = Pusher(0, 1)
        client = self.client(first)
        try:
            versions = np.zeros(len(self.spans), np.int64)
            rows: dict[int, np.ndarray] | None = {} if self.tables else None
            client.push(np.zeros(size, np.float32), versions, Push(first, 1, assign=True), rows=rows)
        finally:
            client.close()
        for where in self.placement.places:
            self._configure(where.shard, ready=True)

    def _follow(self, front: _Front) -> None:
        """Attach a follower to each shard; returns when all are in sync."""
        count = len(self.placement.places)
        assignment = wire.Assignment(
            rule=segments.Rule(name=self.rule[0]),
            max_segment_length=max(span.length for span in self.spans),
            snapshots="/",
            tables=self._tables,
        )
        for shard in range(count):
            follower = wire.FollowerLink(epoch=1, address=front.joined[count + shard], shard_epoch=2)
            self._configure(count + shard, job=JOB, shard_epoch=2, assignment=assignment)
            self._configure(shard, link=follower)
        with front.changed:
            if not front.changed.wait_for(lambda: len(front.followed) == count, START_S):
                raise Unavailable(f"{len(front.followed)} of {count} shards have a follower after {START_S:g} s")

    def client(self, pusher: Pusher | None) -> ShardedParameterClient:
        """A client like a worker's; the caller closes it."""
        return ShardedParameterClient(JOB, self.placement, self.rule, pusher, CALL_S)

    def snapshot(self, folder: Path, set_id: str) -> tuple[int, float]:
        """Make all shards write a snapshot set concurrently; return its bytes, and the seconds of the slowest shard."""
        replies = self.write_parts(folder, set_id)
        return sum(reply.bytes for reply in replies), max(reply.seconds for reply in replies)

    def write_parts(self, folder: Path, set_id: str) -> list[wire.SnapshotReply]:
        """Make all shards write their parts of a snapshot set concurrently; return their replies."""
        replies: list[wire.SnapshotReply] = self._each("Snapshot", wire.SnapshotRequest, folder, set_id)
        return replies

    def restore(self, folder: Path, set_id: str) -> float:
        """Make all shards load their segments from a snapshot set concurrently; return the seconds of the slowest."""
        began_s = time.perf_counter()
        self._each("Restore", wire.RestoreRequest, folder, set_id, rollback=True)
        return time.perf_counter() - began_s

    def _each(self, method: str, request: Any, folder: Path, set_id: str, **more: Any) -> list[Any]:
        """Send all shards a command about a set; return their replies."""
        command = wire.Command(leader_epoch=1, id=next(self._commands))
        message = request(command=command, job=JOB, folder=str(folder), set=set_id, **more)
        calls = [getattr(stub, method).future(message, timeout=CALL_S) for stub in self._stubs]
        with named_errors("a shard"):
            return [call.result() for call in calls]

    def cpu_s(self) -> float:
        """Processor seconds that the shards have used, all threads, user and system."""
        total = 0.0
        for child in self.children:
            assert child.process is not None
            fields = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def resident_mib(self) -> float:
        """Peak resident memory of the largest shard, in MiB."""
        highest = 0
        for child in self.children:
            assert child.process is not None
            status = Path(f"/proc/{child.process.pid}/status").read_text()
            highest = max(highest, int(status.partition("VmHWM:")[2].split()[0]))
        return highest / 1024

    def __enter__(self) -> Self:
        """The shards."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        with self._stack:
            if error is None:
                for number in range(len(self.children)):
                    self._configure(number, stop=True)
            else:
                terminate_all(self.children, grace_s=0.0)  # none of them ends unasked
