"""Simulated connections: what direct streams rely on holds for them as it does for TCP."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import grpc
import pytest

from dbelief.process.runtime import use_runtime
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import ByteSocket, MessageSocket

from .world.network import SimulatedNetwork
from .world.runtime import SimulatedRuntime
from .world.scheduler import Process, Scheduler

TOKEN = bytes(32)


@contextmanager
def simulated() -> Iterator[tuple[Scheduler, SimulatedNetwork, Process, Process]]:
    scheduler = Scheduler(1)
    with use_runtime(SimulatedRuntime(scheduler)):
        yield scheduler, SimulatedNetwork(scheduler, 0.001), scheduler.process("client"), scheduler.process("server")


def run(scheduler: Scheduler, calls: dict[str, tuple[Process, Callable[[], object]]]) -> None:
    """Run a call of each process to its end."""
    tasks = [scheduler.spawn(process, name, call) for name, (process, call) in calls.items()]
    scheduler.run(120.0)
    for task in tasks:
        assert task.over, "it waits"
        if task.error is not None:
            raise task.error


def on_each(client: Callable[[MessageSocket], None], server: Callable[[MessageSocket], None]) -> None:
    """Run both ends' programs over a real connection, one after the other, and over a simulated one."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = ByteSocket(socket.create_connection(door.getsockname()))
        other = ByteSocket(door.accept()[0])
    client(one)
    server(other)
    one.close()
    other.close()
    with simulated() as (scheduler, network, calling, serving):
        ports: list[int] = []

        def serve() -> None:
            listener = network.listen("", None)
            ports.append(listener.port)
            connection = listener.accept(TOKEN, 60.0)
            assert connection is not None
            server(connection)
            connection.close()

        def call() -> None:
            while not ports:
                scheduler.wait(0.01)
            connection = network.connect("", ports[0], TOKEN, None, 1.0)
            client(connection)
            connection.close()

        run(scheduler, {"serve": (serving, serve), "call": (calling, call)})


def test_messages_arrive_in_order_and_then_the_end() -> None:
    received: list[bytes | None] = []

    def client(connection: MessageSocket) -> None:
        for number in range(3):
            connection.send(bytes([number]))
        connection.close()

    on_each(client, lambda connection: received.extend(connection.receive() for _ in range(4)))
    assert received == [b"\0", b"\1", b"\2", None] * 2


def test_a_status_ends_it() -> None:
    def server(connection: MessageSocket) -> None:
        assert connection.receive() == b"one"
        with suppress(OSError):  # a real client does not close it in time
            connection.send_status(grpc.StatusCode.ABORTED, "moved")

    statuses: list[frames.StreamEnded] = []

    def client(connection: MessageSocket) -> None:
        connection.send(b"one")
        if isinstance(connection, ByteSocket):
            return
        with pytest.raises(frames.StreamEnded) as caught:
            connection.receive()
        statuses.append(caught.value)

    on_each(client, server)
    assert [status.code() for status in statuses] == [grpc.StatusCode.ABORTED]


def test_what_is_sent_before_a_cut_arrives_after_it_and_a_long_one_breaks_it() -> None:
    with simulated() as (scheduler, network, calling, serving):
        times: list[float] = []
        ports: list[int] = []

        def serve() -> None:
            listener = network.listen("", None)
            ports.append(listener.port)
            connection = listener.accept(TOKEN, 60.0)
            assert connection is not None
            assert connection.receive() == b"one"
            times.append(scheduler.now_s)
            with pytest.raises(ConnectionResetError):
                connection.receive()
            times.append(scheduler.now_s)

        def call() -> None:
            while not ports:
                scheduler.wait(0.01)
            connection = network.connect("", ports[0], TOKEN, None, 1.0)
            scheduler.wait(1.0)
            network.cut(calling, serving, 5.0, both_ways=True)
            connection.send(b"one")
            scheduler.wait(10.0)
            network.cut(calling, serving, 100.0, both_ways=True)
            connection.send(b"two")
            with pytest.raises(ConnectionResetError):
                connection.receive()

        run(scheduler, {"serve": (serving, serve), "call": (calling, call)})
        assert 6.0 <= times[0] < 7.0
        assert 35.0 < times[1] < 60.0, "noticed as gRPC's keepalive notices it"


def test_the_end_of_a_process_is_noticed() -> None:
    with simulated() as (scheduler, network, calling, serving):
        ports: list[int] = []

        def serve() -> None:
            listener = network.listen("", None)
            ports.append(listener.port)
            connection = listener.accept(TOKEN, 60.0)
            assert connection is not None
            connection.receive()

        def call() -> None:
            while not ports:
                scheduler.wait(0.01)
            connection = network.connect("", ports[0], TOKEN, None, 1.0)
            scheduler.wait(1.0)
            network.ended(serving, vanished=False)
            with pytest.raises(ConnectionResetError):
                connection.receive()
            with pytest.raises(ConnectionRefusedError):
                network.connect("", 1, TOKEN, None, 1.0)

        scheduler.spawn(serving, "serve", serve)
        run(scheduler, {"call": (calling, call)})
