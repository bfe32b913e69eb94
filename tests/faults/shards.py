"""Shards behind real gRPC servers on loopback, which may die and come back from their snapshots, and their pushers."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.runtime.shard_commands import holdings
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement, runs_of
from dbelief.core.push import PARAMETERS, AppliedPush, Push, Pusher
from dbelief.errors import Rejected, Unavailable
from dbelief.rpc.channel import open_channel
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server
from dbelief.rpc.wire.convert import spans_to_wire, table_to_wire
from dbelief.sparse.table import SparseTable, assign_buckets, pack
from dbelief.telemetry.metrics import Metrics
from ps_server.rpc.servicer import ShardService

from .network import Network

JOB = "faults"
SGD = segments.Rule(name="sgd")
INITIALISER = Pusher(0, 1)
PATIENCE_S = 60.0
"""How long a pusher goes on with one push that does not get through."""

Applied = tuple[int, Pusher, int]
"""Segment, who, and which of its pushes."""


class Shard:
    """One life of one shard."""

    def __init__(self, place: ShardPlacement) -> None:
        self.place = place
        self.channel = open_channel(place.address)
        self.stub = stubs.ParametersStub(self.channel)

    def close(self) -> None:
        """Let go of it."""
        self.channel.close()

    def inherit(self, former: Shard) -> None:
        """Restored, and not known to anybody yet: take note of what is here of the life before."""


class Served(Shard):
    """A shard in this process.

    Attributes
    ----------
    applied
        What this life has applied, in order.
    kept
        What it holds from earlier lives.
    """

    def __init__(self, place: ShardPlacement, listen: str) -> None:
        self.applied: list[Applied] = []
        self.kept: list[Applied] = []
        self.service = ShardService(Metrics("ps"), record=self._note)
        self.service.controller.index = place.shard
        self.server = Server(listen, self.service.register)
        super().__init__(replace(place, address=self.server.address))

    def _note(self, row: AppliedPush) -> None:
        self.applied.append(row[:3])

    def close(self) -> None:
        """End it as a killed process ends: calls that run are cut."""
        self.server.close(grace_s=0.0)
        self.service.end_socket_streams()
        self.service.controller.close()
        super().close()

    @property
    def history(self) -> list[Applied]:
        """All pushes that its vectors hold."""
        return self.kept + self.applied

    def inherit(self, former: Shard) -> None:
        assert isinstance(former, Served)
        held = {}
        for index, segment in self.service.controller.require_shard().segments.items():
            rows = segment.ledger.last.items()
            held.update({(index, who): row.sequence for (vector, who), row in rows if vector == PARAMETERS})
        self.kept = [row for row in former.history if row[2] <= held.get((row[0], row[1]), 0)]


class Shards:
    """The shards of one job, with initial values of 0, and what a coordinator would do for them.

    Parameters
    ----------
    runs
        Per shard how many segments it holds.
    length
        Numbers in a segment.
    start
        Starts a shard at a place, given where to listen.
    table
        A table beside the segments, whose rows step by plain SGD.
    replicated
        Whether each shard has a follower: see `promote`.
    """

    def __init__(
        self,
        runs: Sequence[int],
        length: int = 3,
        start: Callable[[ShardPlacement, str], Shard] = Served,
        table: SparseTable | None = None,
        replicated: bool = False,
    ) -> None:
        self._begin = start
        self.table = table
        self._commands = itertools.count(1)
        self._epochs = itertools.count(1)
        self._changed = threading.Lock()
        spans = [SegmentSpan(index, index * length, length) for index in range(sum(runs))]
        firsts, tables = [0, *itertools.accumulate(runs)], [table] if table is not None else []
        buckets = assign_buckets(tables, len(runs))
        spans += [span for one in tables for span in one.spans(len(spans) * length)]
        places = [ShardPlacement(n, "", 0, ((firsts[n], runs[n]), *runs_of(held))) for n, held in enumerate(buckets)]
        empty = [ShardPlacement(len(runs) + place.shard, "", 0, ()) for place in places] if replicated else []
        self.placement = Placement(0, tuple(spans), tuple(places))
        with ThreadPoolExecutor(len(places) + len(empty)) as pool:  # a process takes a while to come up
            lives = list(pool.map(lambda place: self._start(place, "127.0.0.1:0"), [*places, *empty]))
        self.shards, self.followers = lives[: len(places)], lives[len(places) :]
        self._moved()
        initial = ShardedParameterClient(JOB, self.placement, pusher=INITIALISER)
        zeros, first = np.zeros(self.placement.size, np.float32), Push(INITIALISER, 1, assign=True)
        initial.push(zeros, self.unknown(), first, rows={} if tables else None)
        initial.close()
        for shard in self.shards:
            self.configure(shard, ready=True)
        for shard, follower in zip(self.shards, self.followers, strict=replicated):
            there = follower.place
            link = wire.FollowerLink(epoch=1, address=there.address, shard_epoch=there.shard_epoch)
            self.configure(shard, link=link)

    def close(self) -> None:
        for shard in [*self.shards, *self.followers]:
            shard.close()

    def unknown(self) -> np.ndarray:
        """Versions of one who has pulled nothing."""
        return np.full(len(self.placement.spans), -1, np.int64)

    # -- as a coordinator --------------------------------------------------------------------------------

    def _start(self, place: ShardPlacement, listen: str) -> Shard:
        """A new life: a service with the place's segments, not ready yet."""
        shard = self._begin(replace(place, shard_epoch=next(self._epochs)), listen)
        run = [self.placement.spans[index] for index in place.segments]
        tables = [table_to_wire(self.table, SGD)] if self.table is not None else []
        assignment = wire.Assignment(segments=spans_to_wire(run), rule=SGD, record=True, snapshots="/", tables=tables)
        self.configure(shard, job=JOB, shard_epoch=shard.place.shard_epoch, assignment=assignment)
        return shard

    def configure(self, shard: Shard, **fields: Any) -> None:
        shard.stub.Configure(wire.ConfigureRequest(command=self.command(), **fields))

    def command(self) -> wire.Command:
        return wire.Command(leader_epoch=1, id=next(self._commands))

    def _moved(self) -> None:
        with self._changed:
            places = tuple(shard.place for shard in self.shards)
            self.placement = replace(self.placement, epoch=self.placement.epoch + 1, places=places)

    def snapshot(self, folder: Path, set_id: str) -> None:
        """Write a set, shard by shard, while pushes go on."""
        for shard in self.shards:
            request = wire.SnapshotRequest(command=self.command(), job=JOB, folder=str(folder), set=set_id)
            shard.stub.Snapshot(request)

    def restart(self, number: int, folder: Path, set_id: str, same_port: bool) -> None:
        """Kill a shard and bring it back from its part of a set."""
        old = self.shards[number]
        old.close()
        new = self._start(old.place, old.place.address if same_port else "127.0.0.1:0")
        request = wire.RestoreRequest(command=self.command(), job=JOB, folder=str(folder), set=set_id)
        new.stub.Restore(request)
        new.inherit(old)
        self.configure(new, ready=True)
        self.shards[number] = new
        self._moved()

    def promote(self) -> None:
        """Kill every shard; its follower goes on in its place."""
        for number, (old, new) in enumerate(zip(self.shards, self.followers, strict=True)):
            old.close()
            new.place = replace(old.place, address=new.place.address, shard_epoch=next(self._epochs))
            life = {"job": JOB, "shard_epoch": new.place.shard_epoch, "holdings": holdings(new.place.runs)}
            self.configure(new, promoted=True, ready=True, **life)
            self.shards[number] = new
        self.followers = []
        self._moved()

    # -- as one who looks --------------------------------------------------------------------------------

    def read(self) -> np.ndarray:
        """The parameters, (N,) float32, asked of each shard in one plain call."""
        out = np.full(self.placement.size, np.nan, np.float32)
        for shard in self.shards:
            target = wire.Target(job=JOB, shard_epoch=shard.place.shard_epoch)
            run = [span.index for span in self.placement.run(shard.place)]
            request = wire.PullRequest(target=target, vector=PARAMETERS, segments=run)
            for segment in (segment for reply in shard.stub.Pull(iter([request])) for segment in reply.segments):
                span = self.placement.spans[segment.index]
                out[span.start : span.stop] = np.frombuffer(segment.data, np.float32)
        return out

    def read_rows(self, keys: np.ndarray) -> np.ndarray:
        """(n, width) float32 rows of the table at (n,) int64 keys."""
        assert self.table is not None
        with closing(ShardedParameterClient(JOB, self.placement)) as client:
            (rows,) = client.pull_rows({self.table: keys}, self.unknown())
        return rows

    def stats(self) -> list[wire.StatsReply]:
        return [shard.stub.Stats(wire.StatsRequest(job=JOB, ledgers=True)) for shard in self.shards]


@dataclass(frozen=True)
class SparseGradients:
    """Gradients of rows, one for each push.

    Attributes
    ----------
    keys
        (n,) int64, of all rows that are pushed.
    packed
        By push and bucket: see `dbelief.sparse.table.pack`.
    total
        (n, width) float32: sums over the pushes.
    """

    table: SparseTable
    keys: np.ndarray
    packed: list[dict[int, np.ndarray]]
    total: np.ndarray

    @classmethod
    def draw(cls, seed: int, pushes: int, table: SparseTable, keys: np.ndarray) -> SparseGradients:
        """Small whole numbers, whose sums are exact in any order, for up to an eighth of the keys in each push."""
        rng = np.random.default_rng(seed)
        total, packed = np.zeros((len(keys), table.width), np.float32), []
        for _ in range(pushes):
            some = rng.choice(len(keys), rng.integers(len(keys) // 8 + 1), replace=False)
            rows = rng.integers(-9, 10, (len(some), table.width)).astype(np.float32)
            order, parts = table.split(keys[some])
            packed.append({index: pack(keys[some][order][own], rows[order][own]) for index, own in parts})
            total[some] += rows
        return cls(table, keys, packed, total)


class Trainer(threading.Thread):
    """One pusher on a thread of its own: pushes its gradients in order, each until it is acknowledged.

    Every few pushes it pulls, as a replica would. What a failing push raises besides "nobody answers" ends it and is
    kept in `error`. `rows` are pushed and pulled with the gradients.
    """

    def __init__(
        self,
        shards: Shards,
        pusher: Pusher,
        gradients: np.ndarray,
        network: Network | None = None,
        deadline_s: float = 0.5,
        after: Callable[[int], None] = lambda pushed: None,
        rows: SparseGradients | None = None,
    ) -> None:
        super().__init__(name=f"pusher-{pusher.replica}", daemon=True)
        self.pusher = pusher
        self.gradients = gradients
        self.pushed = 0
        self.lost = 0
        self.error: Exception | None = None
        self._out = np.zeros(gradients.shape[1], np.float32)
        self._versions = shards.unknown()
        self._after = after
        self._rows = rows

        def placement() -> Placement:
            """Where the shards are, as this pusher sees it."""
            return network.places(str(pusher.replica), shards.placement) if network else shards.placement

        self.client = ShardedParameterClient(
            JOB,
            placement(),
            rule=("sgd", {}),
            pusher=pusher,
            deadline_s=deadline_s,
            refresh=placement,
            direct=False,  # links are broken in gRPC's channels
        )

    def run(self) -> None:
        try:
            while self.pushed < len(self.gradients):
                self.step()
                self._after(self.pushed)
        except Exception as error:
            self.error = error

    def step(self) -> None:
        """One push, and before every tenth a pull."""
        if self.pushed % 10 == 0:
            self._until_answered(lambda: self.client.pull(self._out, self._versions))
            if (rows := self._rows) is not None:
                self._until_answered(lambda: self.client.pull_rows({rows.table: rows.keys}, self._versions))
        push = Push(self.pusher, self.pushed + 1, np.float32(1))
        self._until_answered(lambda: self._push(push, self.gradients[self.pushed]))
        self.pushed += 1

    def _push(self, push: Push, values: np.ndarray) -> None:
        rows = self._rows.packed[self.pushed] if self._rows is not None else None
        self.lost += self.client.push(values, self._versions, push, rows=rows).lost

    def _until_answered(self, call: Callable[[], object]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                call()
                return
            except Unavailable as error:
                if time.monotonic() > until_s:
                    raise Rejected(f"not through within {PATIENCE_S:g} s: {error}") from error


class Steps:
    """Counts what all pushers have pushed; holds back their last push until all that was planned has happened.

    Attributes
    ----------
    count
        Pushes so far.
    calm
        Set when all that was planned has happened.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self.count = 0
        self._most = math.inf
        self._pushed = threading.Condition()
        self.calm = threading.Event()

    def pushed(self, number: int) -> None:
        """To be called by a pusher after each push."""
        with self._pushed:
            self.count += 1
            self._pushed.notify_all()
            assert self._pushed.wait_for(lambda: self.count < self._most or self.calm.is_set(), PATIENCE_S)
        if number == self._each - 1:
            assert self.calm.wait(PATIENCE_S)

    def allow(self, most: float) -> None:
        """Let the pushers come to about so many: on a busy machine they would be done before anything happens."""
        with self._pushed:
            self._most = most
            self._pushed.notify_all()

    def wait_for(self, step: int) -> None:
        """Wait until so many are pushed."""
        with self._pushed:
            assert self._pushed.wait_for(lambda: self.count >= step, PATIENCE_S), f"step {step} of {self.count}"


def integers(seed: int, pushes: int, size: int) -> np.ndarray:
    """(pushes, size) float32 gradients of small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-9, 10, (pushes, size)).astype(np.float32)


def train(trainers: Sequence[Trainer], deadline_s: float) -> None:
    """Run them all to their ends."""
    for trainer in trainers:
        trainer.start()
    until_s = time.monotonic() + deadline_s
    for trainer in trainers:
        trainer.join(max(0.0, until_s - time.monotonic()))
    late = [f"{trainer.name} at push {trainer.pushed}" for trainer in trainers if trainer.is_alive()]
    assert not late, f"not done within {deadline_s:g} s: {', '.join(late)}"
    for trainer in trainers:
        if trainer.error is not None:
            raise trainer.error
