"""Streams that a client has asked for, each over a TCP connection of its own, without gRPC and HTTP/2.

A call of gRPC, which has shown who the client is, gets a port and a token. The server listens there for some seconds,
for one connection: of the client that sends the token first. So no port stays open, and nothing but gRPC serves
strangers. The connection has TLS where this process has credentials: both sides then show certificates of the job.
"""

from __future__ import annotations

import hmac
import socket
import ssl
from contextlib import suppress

from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.wire.message_socket import ByteSocket, TlsSocket
from dbelief.security import current, named_socket

from .socket_streams import MOST_STREAMS, Methods, SocketContext, SocketStreams

ACCEPT_S = 5.0
"""How long a client has to connect and to send its token, in seconds."""


class DirectStreams(SocketStreams):
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
            door = _listening(self._host)
            token = named_socket.new_token()
            port: int = door.getsockname()[1]
            self._spawn(self._accept, door, token, method, SocketContext(peer))
        except BaseException:
            if door is not None:
                door.close()
            self._leave(None)
            raise
        return port, token

    def _accept(self, door: socket.socket, token: bytes, method: str, context: SocketContext) -> None:
        """Wait for the client, and serve it."""
        connection = None
        try:
            with door:
                connection = self._accepted(door, token)
            if connection is not None:
                self._add(connection, context)
        except BaseException as error:
            self._leave(connection)
            if not isinstance(error, Rejected):
                raise
            return
        if connection is None:
            self._leave(None)
        else:
            self._serve(connection, method, context)

    def _accepted(self, door: socket.socket, token: bytes) -> ByteSocket | None:
        """The connection that shows the token within `ACCEPT_S`; None where none does."""
        until_s = runtime.monotonic() + ACCEPT_S
        while (left_s := until_s - runtime.monotonic()) > 0:
            door.settimeout(left_s)
            with suppress(OSError):  # no process connects, or one without the token
                connection, _ = door.accept()
                if (known := self._known(connection, token, until_s)) is not None:
                    return known
        return None

    def _known(self, connection: socket.socket, token: bytes, until_s: float) -> ByteSocket | None:
        """This connection, if it shows the token; else it is closed."""
        try:
            connection.settimeout(max(0.001, until_s - runtime.monotonic()))
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            shown = b""
            while len(shown) < len(token) and (more := connection.recv(len(token) - len(shown))):
                shown += more
            if hmac.compare_digest(shown, token):
                return TlsSocket(connection) if isinstance(connection, ssl.SSLSocket) else ByteSocket(connection)
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None


def _listening(host: str) -> socket.socket:
    """A socket that listens at any free port of an address; "" for every one, of IPv6 and IPv4."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family, backlog=1, dualstack_ipv6=host == "::")
    except OSError as error:
        raise Rejected(f"no port at {host or 'this host'}: {error.strerror or error}") from None
