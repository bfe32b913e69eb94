"""Two shards behind gRPC servers on loopback, for the tests of service and client."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.core.layout import SegmentSpan, assign_segments, make_segments
from dbelief.core.placement import Placement, ShardPlacement, runs_of
from dbelief.core.push import Push, Pusher
from dbelief.rpc.channel import open_channel
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server
from dbelief.rpc.wire.convert import push_to_wire, spans_to_wire, table_to_wire
from dbelief.sparse.table import SparseTable, assign_buckets
from dbelief.telemetry.metrics import Metrics
from ps_server.rpc.servicer import ShardService

SGD = segments.Rule(name="sgd")
A, B, INITIALISER = Pusher(1, 11), Pusher(2, 12), Pusher(0, 10)
Prepare = Callable[[ShardService], None]


def leased(push: Push) -> Push:
    """A push with a lease and a position: of a pusher whose leases have three pushes of ten samples each."""
    before, number = divmod(push.sequence - 1, 3)
    return dataclasses.replace(push, lease=before + 1, position=10 * (number + 1))


def nothing(service: ShardService) -> None:
    """Leave a service as it is."""


def wait_until(happened: Callable[[], bool], what: str = "it to happen") -> None:
    """Look until it has; a test that waits for a minute and a half fails."""
    quiet, until_s = threading.Event(), time.monotonic() + 90.0
    while not happened():
        assert time.monotonic() < until_s, f"waited for {what}"
        quiet.wait(0.005)


class Job:
    """Two shards behind servers, configured as a coordinator does it, with `count` segments of 8 numbers, all 0.

    `spans` are the segments, where they are to be others; `prepare` may change each service before it is served;
    `differences`: shards keep bf16 numbers that were pulled; `tables`: beside them, each with the name of its rule.
    """

    def __init__(
        self,
        count: int = 40,
        staleness: int | None = None,
        deadline_s: float = 10.0,
        prepare: Prepare = nothing,
        rule: str = "sgd",
        spans: Sequence[SegmentSpan] | None = None,
        differences: bool = False,
        tables: Mapping[SparseTable, str] | None = None,
    ) -> None:
        self.differences, self.tables = differences, dict(tables or {})
        self.rule = segments.Rule(name=rule)
        self.metrics = [Metrics("ps") for _ in range(2)]
        self.services = [ShardService(metrics, deadline_s) for metrics in self.metrics]
        for service in self.services:
            prepare(service)
        self.servers = [Server("127.0.0.1:0", service.register) for service in self.services]
        self.channels = [open_channel(server.address) for server in self.servers]
        self.stubs = [stubs.ParametersStub(channel) for channel in self.channels]
        self.clients: list[ShardedParameterClient] = []
        self.commands = itertools.count(1)
        spans = tuple(spans or make_segments([(0, 8 * count - 3)], 8))
        runs, buckets = assign_segments(spans, 2), assign_buckets(list(self.tables), 2)
        spans = (*spans, *(span for table in self.tables for span in table.spans(spans[-1].stop)))
        places = (ShardPlacement(n, self.servers[n].address, n + 5, (runs[n], *runs_of(buckets[n]))) for n in range(2))
        self.placement = Placement(1, spans, tuple(places))
        for number, service in enumerate(self.services):
            service.controller.index = number
            self.configure(number, job="digits", shard_epoch=number + 5, assignment=self.assignment(number, staleness))
        self.client(INITIALISER).push(self.full(0.0), self.held(), Push(INITIALISER, 1, assign=True))
        for number in range(2):
            self.configure(number, ready=True)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for channel in self.channels:
            channel.close()
        for server in self.servers:
            server.close()
        for service in self.services:
            service.end_socket_streams()

    def restart(
        self,
        number: int,
        folder: Path | None = None,
        here: bool = True,
        prepare: Prepare = nothing,
        staleness: int | None = None,
    ) -> None:
        """End a shard's life at once and give it the next, from the snapshot set "s" in `folder`, on the same port.

        Without a set it comes back with nothing. Where it is not `here`, it comes back on another port.
        """
        self.servers[number].close(0.0)
        self.services[number].end_socket_streams()
        self.services[number] = service = ShardService(Metrics("ps"), 10.0)
        service.controller.index = number
        prepare(service)
        listen = self.servers[number].address if here else "127.0.0.1:0"
        self.servers[number] = Server(listen, service.register)
        self.channels.append(open_channel(self.servers[number].address))
        self.stubs[number] = stubs.ParametersStub(self.channels[-1])
        epoch = self.placement.places[number].shard_epoch + 10
        self.configure(number, job="digits", shard_epoch=epoch, assignment=self.assignment(number, staleness))
        if folder is not None:
            request = wire.RestoreRequest(command=self.command(), job="digits", folder=str(folder), set="s")
            self.stubs[number].Restore(request)
        places = list(self.placement.places)
        places[number] = dataclasses.replace(places[number], address=self.servers[number].address, shard_epoch=epoch)
        self.placement = dataclasses.replace(self.placement, epoch=self.placement.epoch + 1, places=tuple(places))

    def snapshot(self, folder: Path) -> None:
        """Write the snapshot set "s"."""
        for stub in self.stubs:
            stub.Snapshot(wire.SnapshotRequest(command=self.command(), job="digits", folder=str(folder), set="s"))

    def assignment(self, number: int, staleness: int | None = None) -> wire.Assignment:
        place = self.placement.places[number]
        run = [self.placement.spans[index] for index in place.segments]
        # Sets of these tests lie anywhere.
        return wire.Assignment(
            segments=spans_to_wire(run),
            rule=self.rule,
            staleness=staleness,
            snapshots="/",
            pull_differences=self.differences,
            tables=self.tables_on_wire,
        )

    @property
    def tables_on_wire(self) -> list[wire.Table]:
        return [table_to_wire(table, segments.Rule(name=rule)) for table, rule in self.tables.items()]

    def command(self, leader_epoch: int = 1, id: int | None = None) -> wire.Command:
        return wire.Command(leader_epoch=leader_epoch, id=next(self.commands) if id is None else id)

    def counted(self, name: str, **labels: str) -> float:
        """A number of the shards' metrics, summed."""
        return sum(metrics.value(name, **labels) or 0 for metrics in self.metrics)

    def configure(self, number: int, command: wire.Command | None = None, **fields: Any) -> wire.ConfigureReply:
        return self.stubs[number].Configure(wire.ConfigureRequest(command=command or self.command(), **fields))

    def client(self, pusher: Pusher, **options: Any) -> ShardedParameterClient:
        # Not over direct streams: many tests count the streams of gRPC, or break them.
        options = {"deadline_s": 10.0, "placement": self.placement, "direct": False, **options}
        self.clients.append(ShardedParameterClient("digits", rule=(self.rule.name, {}), pusher=pusher, **options))
        return self.clients[-1]

    def full(self, value: float) -> np.ndarray:
        return np.full(self.placement.size, value, np.float32)

    def held(self, version: int = -1) -> np.ndarray:
        return np.full(len(self.placement.spans), version, np.int64)

    def read(self, vector: str = "w") -> np.ndarray:
        out = self.full(np.nan)
        self.client(INITIALISER).pull(out, self.held(), vector=vector)
        return out

    def target(self, number: int = 0) -> wire.Target:
        return wire.Target(job="digits", shard_epoch=number + 5)

    def opening(self, push: Push, number: int = 0) -> wire.PushRequest:
        return wire.PushRequest(opening=push_to_wire(push, self.target(number), self.rule))

    def part(self, index: int, value: float = 1.0, **fields: Any) -> wire.PushRequest:
        length = self.placement.spans[index].length
        data = np.full(length, value, np.float32).tobytes()
        segment = segments.Segment(**{"index": index, "length": length, "data": data, **fields})
        return wire.PushRequest(segments=[segment])

    def pulled(self, number: int, **fields: Any) -> list[segments.Segment]:
        """All that a shard answers to one request, read by generated code."""
        request = wire.PullRequest(**{"target": self.target(number), "vector": "w", **fields})
        return [segment for reply in self.stubs[number].Pull(iter([request])) for segment in reply.segments]


def status(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""
