"""Local streams between simulated processes: their Unix sockets, of which a packet takes a moment to arrive.

Blocks of shared memory are real ones: a process of a simulation fetches the descriptor from a thread that no scheduler
knows, which answers at once. Two simulated processes map the memory at two addresses, as two real ones do.

A process that ends closes its sockets. Links that are cut do not concern them: containers may share a host's memory,
and reach each other over a network that fails.
"""

from __future__ import annotations

import errno
import select
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from dbelief.rpc.server.local_streams import LocalStreams
from dbelief.rpc.wire import frames
from dbelief.security import named_socket

from .network import SimulatedNetwork
from .scheduler import Process, Scheduler, Task

ROOM = 4
"""Packets for which a socket has room: few, so that senders wait for it."""
MEAN_S = 0.00002
"""Mean time of a packet."""

_connect, _listening = named_socket.connect, named_socket.listening


class LocalSocket:
    """One end of a connection: as much of `socket.socket` as local streams use."""

    family = socket.AF_INET  # whose peers report no user

    def __init__(self, sockets: LocalSockets, process: Process) -> None:
        self._sockets, self._scheduler = sockets, sockets.scheduler
        self.process = process
        self.peer: LocalSocket = self
        self.method, self.serves = "", False
        self._open, self._shut = True, False
        self._inbox: deque[bytes] = deque()
        self._under_way = 0  # packets to this end
        self._arrives_s = 0.0  # when the last of them arrives
        self._reset = self._ended = False
        self._timeout_s: float | None = named_socket.CONNECT_S
        self._waiting: list[Task] = []
        process.on_end.append(self.close)

    def fileno(self) -> int:
        return 1_000_000 if self._open else -1

    def setsockopt(self, *_: int) -> None: ...

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    @property
    def readable(self) -> bool:
        """Whether a read returns, or fails, at once."""
        return bool(self._inbox) or self._reset or self._ended or self._shut

    @property
    def writable(self) -> bool:
        """Whether a packet can be sent, or a send fails, at once."""
        return self._broken or self.peer._filled < ROOM

    @property
    def _broken(self) -> bool:
        return self._shut or self.peer._shut or not self.peer._open

    @property
    def _filled(self) -> int:
        return self._under_way + len(self._inbox)

    def send(self, packet: bytes, flags: int = 0) -> int:
        self._scheduler.maybe_switch()
        while not self.writable:
            if flags & socket.MSG_DONTWAIT:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            self.wait(None)
        self._check_open()
        if self._broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self.peer._under_way += 1
        self._later(partial(self.peer._arrive, bytes(packet)))
        return len(packet)

    def recv_into(self, buffer: memoryview) -> int:
        self._scheduler.maybe_switch()
        self._check_open()
        while not self.readable:
            self.wait(self._timeout_s)
            self._check_open()
        if self._reset:
            self._reset = False
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not self._inbox:
            return 0
        packet = self._inbox.popleft()
        self.peer._wake()
        buffer[: len(packet)] = packet
        return len(packet)

    def recv(self, size: int) -> bytes:
        buffer = memoryview(bytearray(max(size, frames.LARGEST)))
        return bytes(buffer[: min(size, self.recv_into(buffer))])

    def shutdown(self, how: int) -> None:
        self._check_open()
        if not self._shut:
            self._shut = True
            self._later(self.peer._end)
            self._wake()
            self.peer._wake()

    def close(self) -> None:
        if not self._open:
            return
        if not self._shut:
            self.shutdown(socket.SHUT_RDWR)
        self._open = False
        if self._filled:  # unread packets: the peer gets an error first
            self.peer._reset = self.peer._open
            self.peer._wake()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until something has changed at either end; raises TimeoutError."""
        if not self._scheduler.wait_among(self._waiting, timeout_s):
            raise TimeoutError("timed out")

    def _wake(self) -> None:
        self._scheduler.wake_all(self._waiting)

    def _check_open(self) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _later(self, deliver: Any) -> None:
        """Call a function after all that this end sent before has arrived."""
        peer = self.peer
        delay_s = self._scheduler.random.expovariate(1 / MEAN_S)
        peer._arrives_s = max(self._scheduler.now_s + delay_s, peer._arrives_s)
        self._scheduler.at_moment(peer._arrives_s, deliver)

    def _arrive(self, packet: bytes) -> None:
        self._passes(late=False)  # a fault may end this end's process
        self._under_way -= 1
        if self._open:
            self._inbox.append(packet)
            self._wake()
            self._passes(late=True)

    def _passes(self, late: bool) -> None:
        client, server = (self.peer, self) if self.serves else (self, self.peer)
        self._sockets.network.passes(self.method, client.process, server.process, late)

    def _end(self) -> None:
        self._ended = True
        self._wake()


class _Door:
    """A listening socket."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.called: LocalSocket | None = None

    def settimeout(self, timeout_s: float | None) -> None: ...

    def accept(self) -> tuple[LocalSocket, str]:
        """The connection, where there is one: a shard connects before it replies."""
        if self.called is None:
            raise TimeoutError("timed out")
        return self.called, ""


class _Poll:
    """`select.poll` of one socket."""

    def register(self, one: LocalSocket, mask: int) -> None:
        self._socket, self._mask = one, mask

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        one = self._socket
        while True:
            events = select.POLLIN * one.readable | select.POLLOUT * one.writable
            if events & self._mask:
                return [(one.fileno(), events & self._mask)]
            try:
                one.wait(None if timeout_ms is None else timeout_ms / 1000)
            except TimeoutError:
                return []


class LocalSockets:
    """All local streams of a simulation."""

    POLLIN, POLLOUT, poll = select.POLLIN, select.POLLOUT, _Poll

    def __init__(self, scheduler: Scheduler, network: SimulatedNetwork) -> None:
        self.scheduler, self.network = scheduler, network
        self._doors: dict[str, _Door] = {}

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Context in which the programs use them."""
        spawn = LocalStreams._spawn

        def named(streams: LocalStreams, serve: Any, connection: Any, method: str, context: Any) -> None:
            simulated = connection._socket
            simulated.method = simulated.peer.method = method
            simulated.serves = True
            spawn(streams, serve, connection, method, context)

        with (
            mock.patch.object(named_socket, "listening", self._listening),
            mock.patch.object(named_socket, "connect", self._connect),
            mock.patch.object(named_socket, "remove_stale_names"),  # of killed processes: none has a name
            mock.patch("ps_server.rpc.shared_memory.remove_stale_names"),
            mock.patch("dbelief.rpc.wire.message_socket.select", self),
            mock.patch.object(LocalStreams, "_spawn", named),
        ):
            yield

    @property
    def _process(self) -> Process:
        assert self.scheduler.current is not None, "a timer connects"
        return self.scheduler.current.process

    @contextmanager
    def _listening(self, name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[Any]:
        if kind != frames.KIND:
            with _listening(name, kind) as door:
                yield door
            return
        simulated = self._doors[name] = _Door(self._process)
        try:
            yield simulated
        finally:
            del self._doors[name]

    def _connect(self, name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> Any:
        if kind != frames.KIND:
            return _connect(name, kind)
        door = self._doors.get(name)
        if door is None or not door.process.alive:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        here, there = LocalSocket(self, self._process), LocalSocket(self, door.process)
        here.peer, there.peer = there, here
        door.called = there
        return here
