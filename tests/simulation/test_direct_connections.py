"""Simulated connections: what direct streams rely on holds for them as it does for TCP."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import grpc
import pytest

from dbelief.process.runtime import use_runtime
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import ByteSocket, MessageSocket

from .world.direct_connections import ROOM
from .world.network import SimulatedNetwork
from .world.runtime import SimulatedRuntime
from .world.scheduler import Process, Scheduler

TOKEN = bytes(32)
Call = Callable[[MessageSocket], None]


@dataclass
class World:
    """A network with a client's and a server's process."""

    scheduler: Scheduler
    network: SimulatedNetwork
    client: Process
    server: Process

    def run(self, client: Call, server: Call, server_ends: bool = True) -> None:
        """Connect the two, and run a call of each to its end; of the server's only where it ends."""
        ports: list[int] = []

        def serve() -> None:
            listener = self.network.listen("", None)
            ports.append(listener.port)
            connection = listener.accept(TOKEN, 60.0)
            assert connection is not None
            server(connection)
            connection.close()

        def call() -> None:
            while not ports:
                self.scheduler.wait(0.01)
            connection = self.network.connect("", ports[0], TOKEN, None, 1.0)
            client(connection)
            connection.close()

        tasks = [self.scheduler.spawn(self.client, "call", call), self.scheduler.spawn(self.server, "serve", serve)]
        self.scheduler.run(120.0)
        for task in tasks[: 1 + server_ends]:
            assert task.over, "it waits"
            if task.error is not None:
                raise task.error


@pytest.fixture
def world() -> Iterator[World]:
    scheduler = Scheduler(1)
    with use_runtime(SimulatedRuntime(scheduler)):
        network = SimulatedNetwork(scheduler, 0.001)
        yield World(scheduler, network, scheduler.process("client"), scheduler.process("server"))


def on_each(world: World, client: Call, server: Call) -> None:
    """Run both ends' programs over a real connection, one after the other, and over a simulated one."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = ByteSocket(socket.create_connection(door.getsockname()))
        other = ByteSocket(door.accept()[0])
    client(one)
    server(other)
    one.close()
    other.close()
    world.run(client, server)


def test_messages_arrive_in_order_and_then_the_end(world: World) -> None:
    received: list[frames.Received | None] = []

    def client(connection: MessageSocket) -> None:
        for number in range(3):
            connection.send(bytes([number]))
        connection.close()

    on_each(world, client, lambda connection: received.extend(connection.receive() for _ in range(4)))
    assert received == [b"\0", b"\1", b"\2", None] * 2


def test_a_status_ends_it(world: World) -> None:
    def server(connection: MessageSocket) -> None:
        assert connection.receive() == b"one"
        connection.send_status(grpc.StatusCode.ABORTED, "moved")

    def client(connection: MessageSocket) -> None:
        connection.send(b"one")
        with pytest.raises(frames.StreamEnded, match="moved") as caught:
            connection.receive()
        assert caught.value.code() is grpc.StatusCode.ABORTED

    world.run(client, server)


def test_a_sender_waits_for_room(world: World) -> None:
    def client(connection: MessageSocket) -> None:
        for _ in range(ROOM):
            connection.queue(b"")
            assert connection.flush()
        connection.queue(b"last")
        assert not connection.flush()
        assert connection.wait(room=True, timeout_s=0.5) == (False, False)
        assert connection.wait(room=True) == (False, True)
        assert connection.flush()
        assert connection.receive() == b"all read"

    def server(connection: MessageSocket) -> None:
        world.scheduler.wait(1.0)
        assert [connection.receive() for _ in range(ROOM + 1)] == [b""] * ROOM + [b"last"]
        connection.send(b"all read")

    world.run(client, server)


def test_what_is_sent_before_a_cut_arrives_after_it_and_a_long_one_breaks_it(world: World) -> None:
    times: list[float] = []

    def server(connection: MessageSocket) -> None:
        assert connection.receive() == b"one"
        times.append(world.scheduler.now_s)
        with pytest.raises(ConnectionResetError):
            connection.receive()
        times.append(world.scheduler.now_s)

    def client(connection: MessageSocket) -> None:
        world.scheduler.wait(1.0)
        world.network.cut(world.client, world.server, 5.0, both_ways=True)
        connection.send(b"one")
        world.scheduler.wait(10.0)
        world.network.cut(world.client, world.server, 100.0, both_ways=True)
        connection.send(b"two")
        with pytest.raises(ConnectionResetError):
            connection.receive()

    world.run(client, server)
    assert 6.0 <= times[0] < 7.0
    assert 35.0 < times[1] < 60.0, "noticed as gRPC's keepalive notices it"


def test_the_end_of_a_process_is_noticed(world: World) -> None:
    def client(connection: MessageSocket) -> None:
        world.scheduler.wait(1.0)
        world.network.ended(world.server, vanished=False)
        with pytest.raises(ConnectionResetError):
            connection.receive()
        with pytest.raises(ConnectionRefusedError):
            world.network.connect("", 1, TOKEN, None, 1.0)

    def server(connection: MessageSocket) -> None:
        with suppress(ConnectionResetError):
            connection.receive()

    world.run(client, server, server_ends=False)
