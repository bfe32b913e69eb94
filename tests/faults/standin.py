"""Real `dbelief ps` processes, and what stands in for their coordinator: it lets them join and live, and no more."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import grpc

from dbelief.core.placement import ShardPlacement
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import coordination_pb2_grpc as stubs
from dbelief.rpc.server.server import Server
from tests.faults.shards import JOB, Shard
from tests.processes.conftest import DEADLINE_S, Operator, Role


class Coordinator(stubs.CoordinatorServicer):
    """Knows where its shards are."""

    def __init__(self) -> None:
        self._lives = itertools.count(1)
        self._joined: dict[int, str] = {}
        self._came = threading.Condition()
        self.server = Server("127.0.0.1:0", lambda server: stubs.add_CoordinatorServicer_to_server(self, server))

    def Join(self, request: wire.JoinRequest, context: grpc.ServicerContext) -> wire.JoinReply:
        with self._came:
            self._joined[request.preferred_id] = request.address
            self._came.notify_all()
        return wire.JoinReply(
            id=request.preferred_id, incarnation=next(self._lives), leader_epoch=1, heartbeat_timeout_s=60
        )

    def Beat(self, request: wire.BeatRequest, context: grpc.ServicerContext) -> wire.BeatReply:
        return wire.BeatReply(state=wire.STATE_READY, member=True)

    def Status(self, request: wire.StatusRequest, context: grpc.ServicerContext) -> wire.StatusReply:
        return wire.StatusReply(job=JOB)

    def expect(self, number: int) -> None:
        """Forget a shard, so that `wait_for` waits for its next life."""
        self._joined.pop(number, None)

    def wait_for(self, number: int) -> str:
        """Where a shard is, once it has joined."""
        with self._came:
            assert self._came.wait_for(lambda: number in self._joined, DEADLINE_S), f"shard {number} did not join"
            return self._joined[number]


class Process(Shard):
    """A shard in a process of its own."""

    def __init__(self, place: ShardPlacement, role: Role, address: str) -> None:
        super().__init__(replace(place, address=address))
        self.process = role.process

    def close(self) -> None:
        """Kill it, if it runs."""
        super().close()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_S)


class Host:
    """Starts `dbelief ps` processes in a folder; to be given to `Shards` as `start`."""

    def __init__(self, folder: Path) -> None:
        self.coordinator = Coordinator()  # type: ignore[abstract]  # what it does not serve is UNIMPLEMENTED
        self._operator = Operator(folder)

    def __call__(self, place: ShardPlacement, listen: str) -> Process:
        self.coordinator.expect(place.shard)
        name = f"ps-{place.shard}-{place.shard_epoch}"
        words = ["ps", "--coordinator", self.coordinator.server.address, "--number", str(place.shard)]
        role = self._operator.start(name, *words, "--listen", listen)
        return Process(place, role, self.coordinator.wait_for(place.shard))

    def close(self) -> None:
        """End the coordinator, when all its shards are gone."""
        self.coordinator.server.close(grace_s=0.0)
