"""TCP connections of direct streams: a listener for the one client that sends a token first, and that client's side."""

from __future__ import annotations

import hmac
import socket
import ssl
from contextlib import suppress

from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.security import DOMAIN

from .wire.message_socket import ByteSocket, MessageSocket, TlsSocket

_EVERY = ("", "::", "0.0.0.0")
"""Names of all addresses of a host."""


class TokenListener:
    """Listener at any free port.

    Parameters
    ----------
    host
        Address to listen at; "" and "::" for every one.
    tls
        Context for incoming connections; None: without TLS.

    Attributes
    ----------
    port
        The port.

    Raises
    ------
    Rejected
        There is none.
    """

    def __init__(self, host: str, tls: ssl.SSLContext | None) -> None:
        try:
            if host in _EVERY and socket.has_dualstack_ipv6():  # as gRPC listens
                self._door = socket.create_server(("", 0), family=socket.AF_INET6, backlog=1, dualstack_ipv6=True)
            else:
                family = socket.AF_INET6 if ":" in host and host not in _EVERY else socket.AF_INET
                self._door = socket.create_server(("" if host in _EVERY else host, 0), family=family, backlog=1)
        except OSError as error:
            raise Rejected(f"no port at {host or 'this host'}: {error.strerror or error}") from None
        self.port: int = self._door.getsockname()[1]
        self._tls = tls

    def accept(self, token: bytes, timeout_s: float) -> MessageSocket | None:
        """The connection that shows the token; None where none does within `timeout_s` seconds."""
        until_s = runtime.monotonic() + timeout_s
        while (left_s := until_s - runtime.monotonic()) > 0:
            self._door.settimeout(left_s)
            try:
                connection, _ = self._door.accept()
            except OSError:  # no process connects, or this one has no descriptor left
                return None
            with suppress(OSError):  # one without TLS, or that sends no token
                if (known := self._known(connection, token, until_s)) is not None:
                    return known
        return None

    def close(self) -> None:
        """Listen no more."""
        self._door.close()

    def _known(self, connection: socket.socket, token: bytes, until_s: float) -> MessageSocket | None:
        """This connection, if it shows the token; else it is closed."""
        try:
            known = _message_socket(connection, self._tls, None, until_s)
            if hmac.compare_digest(known.first_bytes(len(token), until_s), token):
                return known
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None


def connect(host: str, port: int, token: bytes, tls: ssl.SSLContext | None, timeout_s: float) -> MessageSocket:
    """Connect to a shard's listener, and send the token.

    Parameters
    ----------
    tls
        Context for outgoing connections; None: without TLS.

    Raises
    ------
    OSError
        It cannot be reached within `timeout_s`, or shows no certificate of a shard.
    """
    until_s = runtime.monotonic() + timeout_s
    connection = socket.create_connection((host, port), timeout_s)
    try:
        made = _message_socket(connection, tls, f"ps.{DOMAIN}", until_s)  # by role, on whatever host, as channels do
        made.send_bytes(token)
        return made
    except BaseException:
        connection.close()
        raise


def _message_socket(
    connection: socket.socket, tls: ssl.SSLContext | None, name: str | None, until_s: float
) -> ByteSocket:
    return TlsSocket(connection, tls, name, until_s) if tls is not None else ByteSocket(connection)
