"""Two shards with a follower each, behind gRPC servers on loopback."""

import dataclasses
import itertools
from typing import Any

import grpc

from dbelief.rpc.channel import open_channel
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from ps_server.rpc.servicer import ShardService
from tests.ps_server.servers import Job, wait_until


class Chained(Job):
    """Two shards, each of which has a follower, and a word for who is killed."""

    def __init__(self, rule: str = "sgd", **options: Any) -> None:
        super().__init__(rule=rule, **options)
        self.followers: list[tuple[ShardService, Server, int]] = []
        self.epochs = itertools.count(100)
        self.chains = [0, 0]
        self.extra: list[tuple[grpc.Channel, Server, ShardService]] = []
        for number in range(2):
            self.followers.append(self.follow(number))

    def follow(self, number: int) -> tuple[ShardService, Server, int]:
        """Have a new shard follow shard `number`."""
        service, epoch = ShardService(Metrics("ps"), 10.0), next(self.epochs)
        service.controller.index = number
        server = Server("127.0.0.1:0", service.register)
        channel = open_channel(server.address)
        self.extra.append((channel, server, service))
        tables = self.tables_on_wire
        assignment = wire.Assignment(rule=self.rule, pull_differences=self.differences, tables=tables)
        stub = stubs.ParametersStub(channel)
        stub.Configure(
            wire.ConfigureRequest(command=self.command(), job="digits", shard_epoch=epoch, assignment=assignment)
        )
        self.chains[number] += 1
        self.configure(
            number, link=wire.FollowerLink(epoch=self.chains[number], address=server.address, shard_epoch=epoch)
        )
        return service, server, epoch

    def whole(self, number: int) -> None:
        """Wait until a shard's follower has all."""
        wait_until(lambda: self.services[number].controller.link.confirmed, "the follower to catch up")

    def promote(self, number: int) -> None:
        """The shard is dead; its follower goes on, alone."""
        self.servers[number].close(0.0)
        service, server, _ = self.followers[number]
        epoch = next(self.epochs)
        self.services[number], self.servers[number] = service, server
        channel = open_channel(server.address)
        self.channels.append(channel)
        self.stubs[number] = stubs.ParametersStub(channel)
        place = self.placement.places[number]
        runs = [segments.SegmentRun(first=first, count=count) for first, count in place.runs]
        self.chains[number] = 0
        self.configure(
            number, job="digits", shard_epoch=epoch, promoted=True, holdings=wire.Holdings(runs=runs), ready=True
        )
        places = list(self.placement.places)
        places[number] = dataclasses.replace(place, address=server.address, shard_epoch=epoch)
        self.placement = dataclasses.replace(self.placement, epoch=self.placement.epoch + 1, places=tuple(places))

    def close(self) -> None:
        super().close()
        for channel, server, service in self.extra:
            channel.close()
            server.close(0.0)
            service.controller.close()
        for service in self.services:
            service.controller.close()
