"""TLS on a connection that never blocks: where TLS has to wait, it raises BlockingIOError as any other socket.

Both ends present a certificate, and both check that it is a worker's: no other role connects to ranks.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dbelief.process.runtime import Lock, runtime

RECORD_BYTES = 1 << 14
"""Maximum size of a TLS record. A header is encrypted together with the beginning of its message, not separately."""


class NonBlockingTlsSocket(ssl.SSLSocket):
    """Socket that raises BlockingIOError where TLS has to wait, as plain sockets do; safe for any number of threads."""

    _one_at_a_time: Lock

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        # An OpenSSL connection is not thread-safe, and one thread may send a goodbye while another one reads.
        lock = self.__dict__.setdefault("_one_at_a_time", runtime.lock())
        with lock:
            try:
                yield
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def do_handshake(self, block: bool = False) -> None:
        """Continue the handshake."""
        with self._turn():
            super().do_handshake()

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receive as a socket does; b"" if the peer closed the connection."""
        with self._turn():
            return super().recv(buflen, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive as a socket does; fills as much as possible, because TLS returns one record at a time."""
        taken, room = 0, memoryview(buffer)
        while taken < len(room):
            try:
                with self._turn():
                    count = super().recv_into(room[taken:])
            except BlockingIOError:
                if taken:
                    break
                raise
            if not count:
                break
            taken += count
        return taken

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as a socket does."""
        with self._turn():
            return super().send(data, flags)

    def sendmsg(self, buffers: Sequence[memoryview], *more: Any) -> int:  # type: ignore[override]
        """Send as a socket does: one record with the first bytes of all buffers."""
        first = buffers[0]
        if len(first) < RECORD_BYTES and len(buffers) > 1:
            first = memoryview(b"".join([first, buffers[1][: RECORD_BYTES - len(first)]]))
        return self.send(first[:RECORD_BYTES])

    def shutdown(self, how: int) -> None:
        """Shut down as a socket does; SSLSocket's own method would continue without TLS."""
        socket.socket.shutdown(self, how)


@dataclass(frozen=True)
class TlsContexts:
    """TLS configuration of connections between workers, for both ends.

    Attributes
    ----------
    calling, called
        TLS contexts of the connecting and of the accepting end.
    name
        DNS name that the accepting end's certificate must have.
    role
        Role that the connecting end's certificate must name.
    """

    calling: ssl.SSLContext
    called: ssl.SSLContext
    name: str
    role: str

    def __post_init__(self) -> None:
        for context in (self.calling, self.called):
            context.sslsocket_class = NonBlockingTlsSocket
        # A ticket would stay unread where a rank only sends, and closing with unread bytes discards what was sent.
        self.called.num_tickets = 0

    def wrap_outgoing(self, one: socket.socket) -> socket.socket:
        """Wrap a connection to another worker; the handshake is still to be done."""
        return self.calling.wrap_socket(one, server_hostname=self.name, do_handshake_on_connect=False)

    def wrap_accepted(self, one: socket.socket) -> socket.socket:
        """Wrap an accepted connection; the handshake is still to be done."""
        return self.called.wrap_socket(one, server_side=True, do_handshake_on_connect=False)


def handshake(one: socket.socket, role: str = "") -> None:
    """Continue the handshake of a connection, if it uses TLS.

    Parameters
    ----------
    role
        Role that the peer's certificate must name; "": the peer is already verified.

    Raises
    ------
    BlockingIOError
        The handshake waits for the peer.
    OSError
        The handshake failed, or the peer's certificate is not that role's.
    """
    if not isinstance(one, NonBlockingTlsSocket):
        return
    one.do_handshake()
    subject = (one.getpeercert() or {}).get("subject", ())
    if role and (("commonName", role),) not in subject:
        raise ssl.SSLCertVerificationError(f"the caller's certificate is no {role}'s")
