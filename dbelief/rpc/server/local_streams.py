"""Streams that a client on this host has asked for, each over a Unix socket and with a thread of its own.

The client listens, and asks by a call of gRPC, which has shown who it is; the server connects. A stream runs the
handler that a stream of gRPC runs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import grpc

from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.wire import frames
from dbelief.security import named_socket
from dbelief.security.same_user import same_user

Handler = Callable[[Iterator[bytes], Any], Iterator[Any]]
Methods = Mapping[str, tuple[Handler, Callable[[Any], bytes] | None]]
"""By name: the handler, and what encodes its replies (None: they are bytes)."""

MOST_STREAMS = 1024
"""Limit over all clients; each stream has a thread."""


class LocalContext:
    """What a handler uses of a call of gRPC.

    Parameters
    ----------
    peer
        gRPC's name of the connection in which the client has asked for the stream.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        """Name of the client's connection."""
        return self._peer

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the stream with a status."""
        raise frames.StreamEnded(code, details)


class LocalStreams:
    """The local streams of one server.

    Parameters
    ----------
    most
        Limit of open streams.
    """

    def __init__(self, methods: Methods, most: int = MOST_STREAMS) -> None:
        self._methods, self._most = methods, most
        self._open = 0
        self._lock = runtime.lock()

    @contextmanager
    def connected(self, peer: str) -> Iterator[Callable[[str, bytes, str], None]]:
        """Context in which one client may open streams; at its end they are closed.

        Yields a function that opens one, by the name and the token that the client listens with, for a method. It
        raises Rejected where none is opened; the client uses gRPC then.
        """
        mine: list[socket.socket] = []

        def opens(name: str, token: bytes, method: str) -> None:
            mine[:] = [connection for connection in mine if connection.fileno() >= 0]
            mine.append(self._begin(name, token, method, peer))

        try:
            yield opens
        finally:
            for connection in mine:
                with suppress(OSError):  # its thread has closed it
                    connection.shutdown(socket.SHUT_RDWR)

    def _begin(self, name: str, token: bytes, method: str, peer: str) -> socket.socket:
        if method not in self._methods:
            raise Rejected(f"no local stream has the method {method[:32]!r}")
        if not named_socket.is_name(name) or len(token) != named_socket.TOKEN_BYTES:
            raise Rejected("no process listens under such a name, or shows such a token")
        with self._lock:
            if self._open >= self._most:
                raise Rejected(f"there are {self._most} local streams already")
            self._open += 1
        try:
            connection = _connected(name, token)
            runtime.spawn(self._serve, "local-stream", connection, method, peer)
        except BaseException:
            self._leave()
            raise
        return connection

    def _serve(self, connection: socket.socket, method: str, peer: str) -> None:
        handler, encode = self._methods[method]
        try:
            for reply in handler(_messages(connection), LocalContext(peer)):
                connection.send(frames.message(reply if encode is None else encode(reply)))
        except frames.StreamEnded as ended:
            with suppress(OSError):
                connection.send(frames.status(ended.code(), ended.details()))
        except OSError:
            pass  # the client has gone
        finally:
            connection.close()
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1


def _connected(name: str, token: bytes) -> socket.socket:
    """Connect to a client, and show it the token."""
    try:
        connection = named_socket.connect(name, frames.KIND)
    except OSError as error:
        raise Rejected(f"no process of this host listens under that name: {error.strerror or error}") from None
    try:
        if not same_user(connection):
            raise Rejected("another user's process listens under that name")
        connection.send(token)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def _messages(connection: socket.socket) -> Iterator[bytes]:
    """Messages of a client, until it has closed the stream."""
    buffer = memoryview(bytearray(frames.LARGEST + 1))
    while size := connection.recv_into(buffer):
        yield frames.content(buffer[:size])
    # Not the end of the messages: an upload that is not complete is not to be acknowledged.
    raise frames.StreamEnded(grpc.StatusCode.CANCELLED, "the client has closed the stream")
