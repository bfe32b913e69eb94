"""Streams that a client on this host has asked for, each over a Unix socket.

The client listens, and asks by a call of gRPC, which has shown who it is; the server connects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import MessageSocket, PacketSocket
from dbelief.security import named_socket
from dbelief.security.same_user import same_user

from .socket_streams import SocketContext, SocketStreams

MOST_OF_CLIENT = 64
"""Limit of a client: it has one for each method that it uses at a time."""


class LocalStreams(SocketStreams):
    """The local streams of one server."""

    kind = "local"

    @contextmanager
    def connected(self, peer: str) -> Iterator[Callable[[str, bytes, str], None]]:
        """Context in which one client may open streams; at its end they are closed.

        Yields a function that opens one, by the name and the token that the client listens with, for a method. It
        raises Rejected where none is opened; the client uses gRPC then.
        """
        mine: list[MessageSocket] = []
        ended = runtime.event()

        def opens(name: str, token: bytes, method: str) -> None:
            mine[:] = [connection for connection in mine if not connection.closed]
            if len(mine) >= MOST_OF_CLIENT:
                raise Rejected(f"this client has {MOST_OF_CLIENT} local streams already")
            mine.append(self._begin(name, token, method, SocketContext(peer, ended)))

        try:
            yield opens
        finally:
            ended.set()
            for connection in mine:
                connection.shut_down()

    def _begin(self, name: str, token: bytes, method: str, context: SocketContext) -> MessageSocket:
        if not named_socket.is_name(name) or len(token) != named_socket.TOKEN_BYTES:
            raise Rejected("no process listens under such a name, or shows such a token")
        self._enter(method)
        connection = None
        try:
            connection = _connected(name, token)
            self._add(connection, context)
            self._spawn(self._serve, connection, method, context)
        except BaseException:
            self._leave(connection)
            raise
        return connection


def _connected(name: str, token: bytes) -> PacketSocket:
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
    return PacketSocket(connection)
