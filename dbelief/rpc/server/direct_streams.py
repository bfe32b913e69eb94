"""Streams that a client has asked for, each over a TCP connection of its own, without gRPC and HTTP/2.

A call of gRPC, which has shown who the client is, gets a port and a token. The server listens there for some seconds,
for one connection: of the client that sends the token first. So no port stays open, and nothing but gRPC serves
strangers. The connection has TLS where this process has credentials: both sides then show certificates of the job.
"""

from __future__ import annotations

import ssl

from dbelief.errors import Rejected
from dbelief.rpc.token_connection import TokenListener
from dbelief.rpc.transport import transport
from dbelief.rpc.wire.message_socket import MessageSocket
from dbelief.security import current, named_socket

from .socket_streams import MOST_STREAMS, Methods, SocketContext, SocketStreams

ACCEPT_S = 5.0
"""How long a client has to connect and to send its token, in seconds."""


class DirectStreamServer(SocketStreams):
    """The direct streams of one server.

    Parameters
    ----------
    host
        Address that the server listens at; "" for every one.
    """

    kind = "direct"

    def __init__(self, host: str, methods: Methods, most: int = MOST_STREAMS) -> None:
        super().__init__(methods, most)
        self._host = host.strip("[]")
        mine = current()
        self._tls = mine.context(ssl.Purpose.CLIENT_AUTH) if mine is not None else None
        if self._tls is not None:
            # A client that waits for room or a reply would take a session ticket for one.
            self._tls.num_tickets = 0

    def open(self, peer: str, method: str) -> tuple[int, bytes]:
        """Listen for a stream of a method; the port, and the token that its client sends first.

        Parameters
        ----------
        peer
            gRPC's name of the client's connection.

        Raises
        ------
        Rejected
            None is opened; the client uses gRPC then.
        """
        self._enter(method)
        door = None
        try:
            door = transport.listen(self._host, self._tls)
            token = named_socket.new_token()
            self._spawn(self._accept, door, token, method, SocketContext(peer))
        except BaseException:
            if door is not None:
                door.close()
            self._leave(None)
            raise
        return door.port, token

    def _accept(self, door: TokenListener, token: bytes, method: str, context: SocketContext) -> None:
        """Wait for the client, and serve it."""
        connection: MessageSocket | None = None
        try:
            connection = door.accept(token, ACCEPT_S)
            if connection is not None:
                self._add(connection, context)
        except Rejected:  # the server has ended meanwhile
            self._leave(connection)
            return
        finally:
            door.close()
        if connection is None:
            self._leave(None)
        else:
            self._serve(connection, method, context)
