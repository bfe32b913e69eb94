"""Simulated local sockets: what local streams rely on holds for them as it does for Unix sockets of the system."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dbelief.process.runtime import use_runtime
from dbelief.rpc.wire import frames
from dbelief.security import named_socket

from .world.local_sockets import ROOM, LocalSockets
from .world.network import SimulatedNetwork
from .world.runtime import SimulatedRuntime
from .world.scheduler import Process, Scheduler


@contextmanager
def simulated(scheduler: Scheduler) -> Iterator[tuple[Process, Process, LocalSockets]]:
    with use_runtime(SimulatedRuntime(scheduler)):
        sockets = LocalSockets(scheduler, SimulatedNetwork(scheduler, 0.001))
        with sockets.replacing():
            yield scheduler.process("client"), scheduler.process("server"), sockets


def run(scheduler: Scheduler, process: Process, call: Callable[[], object]) -> None:
    """Run a call as a task of a process to its end."""
    task = scheduler.spawn(process, "task", call)
    scheduler.run(60.0)
    assert task.over, "it waits"
    if task.error is not None:
        raise task.error


def on_each(check: Callable[[Any, Any, Any], None]) -> None:
    """Run a check on two real sockets, and on two simulated ones."""
    one, other = socket.socketpair(socket.AF_UNIX, frames.KIND)
    with one, other:
        frames.prepare(one)
        frames.prepare(other)
        check(one, other, select)
    scheduler = Scheduler(1)
    with simulated(scheduler) as (client, _, sockets):

        def connect() -> None:
            name = named_socket.new_name()
            with named_socket.listening(name, frames.KIND) as door:
                one = named_socket.connect(name, frames.KIND)
                other, _ = door.accept()
            frames.prepare(one)
            frames.prepare(other)
            check(one, other, sockets)

        run(scheduler, client, connect)


def read(end: Any) -> bytes:
    return bytes(end.recv(100))


def test_packets_arrive_whole_and_in_order_and_then_the_end() -> None:
    def check(one: Any, other: Any, module: Any) -> None:
        for packet in (b"first", b"second"):
            assert one.send(packet) == len(packet)
        one.close()
        assert [read(other) for _ in range(3)] == [b"first", b"second", b""]

    on_each(check)


def test_an_end_that_closes_with_unread_packets_resets_before_what_it_has_sent() -> None:
    def check(one: Any, other: Any, module: Any) -> None:
        one.send(b"unread")
        other.send(b"status")
        other.close()
        with pytest.raises(ConnectionResetError):
            read(one)
        assert [read(one), read(one)] == [b"status", b""]

    on_each(check)


def test_nothing_can_be_sent_to_an_end_that_is_closed_or_shut_down() -> None:
    def closed(one: Any, other: Any, module: Any) -> None:
        other.close()
        with pytest.raises(BrokenPipeError):
            one.send(b"packet")

    def shut(one: Any, other: Any, module: Any) -> None:
        other.shutdown(socket.SHUT_RDWR)
        with pytest.raises(BrokenPipeError):
            one.send(b"packet")
        assert read(other) == b""
        other.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            other.shutdown(socket.SHUT_RDWR)
        assert other.fileno() == -1

    on_each(closed)
    on_each(shut)


def test_a_socket_without_room_refuses_until_its_peer_reads() -> None:
    def check(one: Any, other: Any, module: Any) -> None:
        sent = [one.send(b"packet", socket.MSG_DONTWAIT)]
        with pytest.raises(BlockingIOError):
            sent += (one.send(b"packet", socket.MSG_DONTWAIT) for _ in range(10_000))
        waits = module.poll()
        waits.register(one, select.POLLOUT)
        assert waits.poll(10) == []
        with suppress(TimeoutError):
            other.settimeout(0.01)
            while read(other):
                pass
        assert waits.poll(10) != []
        one.send(b"packet")

    on_each(check)


def test_a_poll_sees_a_packet_and_an_end() -> None:
    def check(one: Any, other: Any, module: Any) -> None:
        waits = module.poll()
        waits.register(other, select.POLLIN)
        assert waits.poll(0) == []
        one.send(b"packet")
        assert waits.poll(1000)[0][1] & select.POLLIN
        read(other)
        one.close()
        assert waits.poll(1000)[0][1] & select.POLLIN

    on_each(check)


def test_no_process_listens_under_a_name_that_is_gone() -> None:
    name = named_socket.new_name()
    with pytest.raises(FileNotFoundError):
        named_socket.connect(name, frames.KIND)
    scheduler = Scheduler(1)

    def connect() -> None:
        with pytest.raises(FileNotFoundError):
            named_socket.connect(name, frames.KIND)

    with simulated(scheduler) as (client, _, _):
        run(scheduler, client, connect)


def test_a_process_that_ends_closes_its_sockets_and_what_it_sent_arrives() -> None:
    scheduler = Scheduler(1)
    with simulated(scheduler) as (client, server, _):
        ends: list[Any] = []
        name = named_socket.new_name()

        def serve() -> None:
            with named_socket.listening(name, frames.KIND) as door:
                ends.append(door)
                scheduler.wait(0.1)
                ends.append(door.accept()[0])
            for _ in range(ROOM):
                ends[1].send(b"last")
            scheduler.end(server)

        def connect() -> None:
            scheduler.wait(0.05)
            connection = named_socket.connect(name, frames.KIND)
            connection.send(b"never read")
            scheduler.wait(1.0)
            with pytest.raises(ConnectionResetError):
                read(connection)
            assert [read(connection) for _ in range(ROOM + 1)] == [*ROOM * [b"last"], b""]

        scheduler.spawn(server, "serve", serve)
        run(scheduler, client, connect)
        assert ends[1].fileno() == -1


def test_a_sender_waits_for_room_while_another_task_reads() -> None:
    scheduler = Scheduler(1)
    with simulated(scheduler) as (client, server, _):
        name, received = named_socket.new_name(), list[bytes]()

        def serve() -> None:
            connection = named_socket.connect(name, frames.KIND)
            while packet := read(connection):
                received.append(packet)
                scheduler.wait(0.01)

        def connect() -> None:
            with named_socket.listening(name, frames.KIND) as door:
                scheduler.spawn(server, "serve", serve)
                scheduler.wait(0.01)
                connection, _ = door.accept()
            for number in range(5 * ROOM):
                connection.send(bytes([number]))
            connection.close()

        run(scheduler, client, connect)
    assert received == [bytes([number]) for number in range(5 * ROOM)]
