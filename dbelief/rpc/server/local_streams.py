"""Streams that a client on this host has asked for, each over a Unix socket and with a thread of its own.

The client listens, and asks by a call of gRPC, which has shown who it is; the server connects. A stream runs the
handler that a stream of gRPC runs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, NoReturn, cast

import grpc

from dbelief.errors import Rejected
from dbelief.process.runtime import Event, runtime
from dbelief.rpc.wire import frames
from dbelief.security import named_socket
from dbelief.security.same_user import same_user

Handler = Callable[[Iterator[bytes], Any], Iterator[bytes]]
"""A generator of replies to messages."""
Methods = Mapping[str, Handler]
"""By name: the handler."""

MOST_STREAMS = 1024
"""Limit over all clients; each stream has a thread."""
MOST_OF_CLIENT = 64
"""Limit of a client: it has one for each method that it uses at a time."""
_CLOSED = "this server opens no local streams any more"


class LocalContext:
    """What a handler uses of a call of gRPC.

    Parameters
    ----------
    peer
        gRPC's name of the connection in which the client has asked for the stream.
    ended
        Set at the end of the call in which it has.
    """

    def __init__(self, peer: str, ended: Event) -> None:
        self._peer, self._ended = peer, ended

    @property
    def ended(self) -> bool:
        """Whether messages that are read from now on are not processed."""
        return self._ended.is_set()

    def end(self) -> None:
        """End it: messages that are read from now on are not processed."""
        self._ended.set()

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
        self._closed = False
        self._connections: dict[socket.socket, LocalContext] = {}
        self._lock = runtime.lock()

    @contextmanager
    def connected(self, peer: str) -> Iterator[Callable[[str, bytes, str], None]]:
        """Context in which one client may open streams; at its end they are closed.

        Yields a function that opens one, by the name and the token that the client listens with, for a method. It
        raises Rejected where none is opened; the client uses gRPC then.
        """
        mine: list[socket.socket] = []
        ended = runtime.event()

        def opens(name: str, token: bytes, method: str) -> None:
            mine[:] = [connection for connection in mine if connection.fileno() >= 0]
            if len(mine) >= MOST_OF_CLIENT:
                raise Rejected(f"this client has {MOST_OF_CLIENT} local streams already")
            mine.append(self._begin(name, token, method, LocalContext(peer, ended)))

        try:
            yield opens
        finally:
            ended.set()
            for connection in mine:
                with suppress(OSError):  # its thread has closed it
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all streams, and open no further one: no message is read from now on. Their threads end by themselves."""
        with self._lock:
            self._closed = True
            for connection, context in self._connections.items():
                context.end()
                with suppress(OSError):  # the client has closed it
                    connection.shutdown(socket.SHUT_RDWR)

    def _begin(self, name: str, token: bytes, method: str, context: LocalContext) -> socket.socket:
        if method not in self._methods:
            raise Rejected(f"no local stream has the method {method[:32]!r}")
        if not named_socket.is_name(name) or len(token) != named_socket.TOKEN_BYTES:
            raise Rejected("no process listens under such a name, or shows such a token")
        with self._lock:
            if self._closed:
                raise Rejected(_CLOSED)
            if self._open >= self._most:
                raise Rejected(f"there are {self._most} local streams already")
            self._open += 1
        connection = None
        try:
            connection = _connected(name, token)
            self._spawn(connection, method, context)
        except BaseException:
            self._leave(connection)
            raise
        return connection

    def _spawn(self, connection: socket.socket, method: str, context: LocalContext) -> None:
        with self._lock:
            if self._closed:
                raise Rejected(_CLOSED)
            self._connections[connection] = context
        try:
            runtime.spawn(self._serve, "local-stream", connection, method, context)
        except RuntimeError as error:  # the system allows no further thread
            raise Rejected(str(error)) from None

    def _serve(self, connection: socket.socket, method: str, context: LocalContext) -> None:
        try:
            made = self._methods[method](_messages(connection, context), context)
            with closing(cast("Generator[bytes]", made)) as replies:
                for reply in replies:
                    connection.send(frames.message(reply))
        except frames.StreamEnded as ended:
            with suppress(OSError):
                connection.send(frames.status(ended.code(), ended.details()))
        except OSError:
            pass  # the client has gone
        finally:
            self._leave(connection)

    def _leave(self, connection: socket.socket | None) -> None:
        with self._lock:
            self._open -= 1
            if connection is not None:
                self._connections.pop(connection, None)
                connection.close()


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
        frames.prepare(connection)
    except OSError as error:
        connection.close()
        raise Rejected(f"the client has ended the connection: {error.strerror or error}") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _messages(connection: socket.socket, context: LocalContext) -> Iterator[bytes]:
    """Messages of a client, until it has closed the stream, or the call in which it asked for it."""
    buffer = memoryview(bytearray(frames.LARGEST + 1))
    # A client that ends with a reply unread resets the connection.
    with suppress(OSError):
        while (size := connection.recv_into(buffer)) and not context.ended:
            yield frames.content(buffer[:size])
    # Not the end of the messages: an upload that is not complete is not to be acknowledged.
    raise frames.StreamEnded(grpc.StatusCode.CANCELLED, "the client has closed the stream")
