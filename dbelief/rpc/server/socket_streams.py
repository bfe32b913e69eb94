"""Streams that a client has over a socket in place of gRPC, each with a thread of its own.

A stream runs the handler that a stream of gRPC runs. The client has asked for it by a call of gRPC, which has shown who
it is: over a Unix socket of the same host (`local_streams`), or over TCP (`direct_streams`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, NoReturn, cast

import grpc

from dbelief.errors import Rejected
from dbelief.process.runtime import Event, runtime
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import MessageSocket

Handler = Callable[[Iterator[frames.Received], Any], Iterator[bytes]]
"""A generator of replies to messages."""
Methods = Mapping[str, Handler]
"""By name: the handler."""

MOST_STREAMS = 1024
"""Limit of streams of one kind over all clients; each stream has a thread."""


class SocketContext:
    """What a handler uses of a call of gRPC.

    Parameters
    ----------
    peer
        gRPC's name of the connection in which the client has asked for the stream.
    ended
        Set at the end of the call in which it has; None: the stream does not end with it.
    """

    def __init__(self, peer: str, ended: Event | None = None) -> None:
        self._peer, self._ended = peer, ended or runtime.event()

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


class SocketStreams:
    """The streams of one kind of one server.

    Parameters
    ----------
    most
        Limit of open streams.
    """

    kind = "socket"

    def __init__(self, methods: Methods, most: int = MOST_STREAMS) -> None:
        self._methods, self._most = methods, most
        self._open = 0
        self._closed = False
        self._connections: dict[MessageSocket, SocketContext] = {}
        self._lock = runtime.lock()

    def close(self) -> None:
        """End all streams, and open no further one: no message is read from now on. Their threads end by themselves."""
        with self._lock:
            self._closed = True
            for connection, context in self._connections.items():
                context.end()
                connection.shut_down()

    def _enter(self, method: str) -> None:
        """Count a stream of this method; raises Rejected where there is none of it, or too many."""
        if method not in self._methods:
            raise Rejected(f"no {self.kind} stream has the method {method[:32]!r}")
        with self._lock:
            self._check_open()
            if self._open >= self._most:
                raise Rejected(f"there are {self._most} {self.kind} streams already")
            self._open += 1

    def _add(self, connection: MessageSocket, context: SocketContext) -> None:
        with self._lock:
            self._check_open()
            self._connections[connection] = context

    def _check_open(self) -> None:
        if self._closed:
            raise Rejected(f"this server opens no {self.kind} streams any more")

    def _spawn(self, serve: Callable[..., None], *arguments: Any) -> None:
        try:
            runtime.spawn(serve, f"{self.kind}-stream", *arguments)
        except RuntimeError as error:  # the system allows no further thread
            raise Rejected(str(error)) from None

    def _serve(self, connection: MessageSocket, method: str, context: SocketContext) -> None:
        """Run the handler over a connection, to its end."""
        try:
            made = self._methods[method](messages_of(connection, context), context)
            with closing(cast("Generator[bytes]", made)) as replies:
                for reply in replies:
                    connection.send(reply)
        except frames.StreamEnded as ended:
            with suppress(OSError):
                connection.send_status(ended.code(), ended.details())
        except OSError:
            pass  # the client has gone
        finally:
            self._leave(connection)

    def _leave(self, connection: MessageSocket | None) -> None:
        with self._lock:
            self._open -= 1
            if connection is not None:
                self._connections.pop(connection, None)
                connection.close()


def messages_of(connection: MessageSocket, context: SocketContext) -> Iterator[frames.Received]:
    """Messages of a client, until it has closed the stream, or the call in which it asked for it."""
    # A client that ends with a reply unread resets the connection.
    with suppress(OSError):
        while (message := connection.receive()) is not None and not context.ended:
            yield message
    # Not the end of the messages: an upload that is not complete is not to be acknowledged.
    raise frames.StreamEnded(grpc.StatusCode.CANCELLED, "the client has closed the stream")
