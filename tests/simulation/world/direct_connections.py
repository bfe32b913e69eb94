"""Direct streams between simulated processes: connections whose packets the simulated network carries.

A connection is a call of the network without a server's handler: its messages are delayed, held back by cut links, and
lost where it breaks, as those of a stream of gRPC are.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import grpc

from dbelief.rpc.server.socket_streams import SocketStreams
from dbelief.rpc.token_connection import TokenListener
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import MessageSocket

from .scheduler import Process, Scheduler, Task

if TYPE_CHECKING:
    from .network import SimulatedNetwork

ROOM = 3
"""Messages under way or unread for which a connection has room: few, so that senders wait for it."""


class Ends:
    """The two ends of a connection: what the network breaks where it breaks a call."""

    def __init__(self, network: SimulatedNetwork, scheduler: Scheduler, client: Process, server: Process) -> None:
        self.client = SimulatedConnection(network, scheduler, self, client)
        self.server = SimulatedConnection(network, scheduler, self, server)
        self.client.peer, self.server.peer = self.server, self.client
        self.requests = self  # of the server's end: see `put`

    def ended(self, why: grpc.RpcError) -> None:
        """Break the client's end."""
        self.client.broke()

    def put(self, why: grpc.RpcError) -> None:
        """Break the server's end."""
        self.server.broke()


class SimulatedConnection(MessageSocket):
    """One end of a connection."""

    peer: SimulatedConnection

    def __init__(self, network: SimulatedNetwork, scheduler: Scheduler, ends: Ends, process: Process) -> None:
        self._network, self._scheduler, self._ends, self.process = network, scheduler, ends, process
        self._unsent: bytes | None = None
        self._inbox: deque[bytes | frames.StreamEnded | None] = deque()  # None: the end
        self._sent = 0  # messages that the peer has not read
        self._closed = self._broken = self._ended = False
        self._waiting: list[Task] = []

    def queue(self, message: bytes) -> None:
        self._unsent = bytes(message)

    def flush(self, wait: bool = False) -> bool:
        self._scheduler.maybe_switch()
        while self._unsent is not None:
            self._check()
            if self._sent < ROOM:
                self._send(self._unsent)
                self._unsent = None
            elif not wait:
                return False
            else:
                self._scheduler.wait_among(self._waiting)
        return True

    def receive(self) -> bytes | None:
        self._scheduler.maybe_switch()
        while not self._inbox:
            if self._ended:
                return None
            self._check()
            self._scheduler.wait_among(self._waiting)
        packet = self._inbox.popleft()
        self.peer._sent -= 1
        self.peer._wake()
        if isinstance(packet, frames.StreamEnded):
            raise packet
        if packet is None:
            self._ended = True
        return packet

    def send_status(self, code: grpc.StatusCode, reason: str) -> None:
        self._check()
        self._send(frames.StreamEnded(code, reason))

    def wait(self, room: bool, timeout_s: float | None = None) -> tuple[bool, bool]:
        while True:
            readable = bool(self._inbox) or self._broken or self._ended
            writable = room and self._sent < ROOM
            if readable or writable:
                return readable, writable
            if not self._scheduler.wait_among(self._waiting, timeout_s):
                return False, False

    def shut_down(self) -> None:
        if not self._broken:
            self._send(None)
            self._ended = True
            self._wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.shut_down()
            if self.peer._closed:
                self._network.over(self._ends)  # type: ignore[arg-type]

    @property
    def closed(self) -> bool:
        return self._closed

    def broke(self) -> None:
        """Break: nothing arrives any more."""
        self._broken = True
        self._wake()

    def _check(self) -> None:
        if self._broken or self._ended:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def _send(self, packet: bytes | frames.StreamEnded | None) -> None:
        self._sent += 1
        self._network.carry(
            self._ends,  # type: ignore[arg-type]
            partial(self.peer._arrive, packet),
            self is self._ends.client,
        )

    def _arrive(self, packet: Any) -> None:
        self._inbox.append(packet)
        self._wake()

    def _wake(self) -> None:
        self._scheduler.wake_all(self._waiting)


@contextmanager
def named(network: SimulatedNetwork) -> Iterator[None]:
    """Context in which the network knows the method of each direct stream: faults may occur at its messages."""
    serve = SocketStreams._serve

    def serves(streams: SocketStreams, connection: MessageSocket, method: str, context: Any) -> None:
        if isinstance(connection, SimulatedConnection):
            network.name(connection._ends, method)
        serve(streams, connection, method, context)

    with mock.patch.object(SocketStreams, "_serve", serves):
        yield


class SimulatedListener(TokenListener):
    """A listener of a simulated process, for one client."""

    def __init__(self, network: SimulatedNetwork, scheduler: Scheduler, process: Process, port: int) -> None:
        self._network, self._scheduler, self.process, self.port = network, scheduler, process, port
        self._called: tuple[bytes, SimulatedConnection] | None = None
        self._waiting: Task | None = None

    def accept(self, token: bytes, timeout_s: float) -> MessageSocket | None:
        if self._called is None:
            self._waiting = self._scheduler.current
            self._scheduler.wait(timeout_s)
        return self._called[1] if self._called is not None and self._called[0] == token else None

    def call(self, token: bytes, connection: SimulatedConnection) -> None:
        """A client's connection arrives."""
        self._called = token, connection
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def close(self) -> None:
        self._network.listeners.pop(self.port, None)
