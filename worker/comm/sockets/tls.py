"""TLS on a connection that never blocks: what waits is said as by any other socket.

Both ends show a certificate, and both see that it is a worker's: no other role has business between ranks.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

RECORD_BYTES = 1 << 14
"""Most that TLS seals at once; a head that leaves together with its message's beginning is not sealed apart."""


class TlsSocket(ssl.SSLSocket):
    """A socket that raises BlockingIOError where TLS has to wait, as plain ones do; for any number of threads."""

    _one_at_a_time: threading.Lock

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        # OpenSSL's connections are no two threads' at once, and one thread may say goodbye while another reads.
        lock = self.__dict__.setdefault("_one_at_a_time", threading.Lock())
        with lock:
            try:
                yield
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def do_handshake(self, block: bool = False) -> None:
        """Go on with the handshake."""
        with self._turn():
            super().do_handshake()

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As a socket's; b"" where the peer closed."""
        with self._turn():
            return super().recv(buflen, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """As a socket's: fills what it can, for TLS gives a record at a time."""
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
        """As a socket's."""
        with self._turn():
            return super().send(data, flags)

    def sendmsg(self, buffers: Sequence[memoryview], *more: Any) -> int:  # type: ignore[override]
        """As a socket's: the first bytes of all buffers, a record of them."""
        first = buffers[0]
        if len(first) < RECORD_BYTES and len(buffers) > 1:
            first = memoryview(b"".join([first, buffers[1][: RECORD_BYTES - len(first)]]))
        return self.send(first[:RECORD_BYTES])

    def shutdown(self, how: int) -> None:
        """As a socket's; SSLSocket's own would go on without TLS."""
        socket.socket.shutdown(self, how)


@dataclass(frozen=True)
class TlsContexts:
    """How connections between workers are sealed, from both ends.

    Attributes
    ----------
    calling, called
        TLS contexts of who calls and who is called.
    name
        Whose certificate the callee must show, a DNS name.
    role
        Whom the caller's must name.
    """

    calling: ssl.SSLContext
    called: ssl.SSLContext
    name: str
    role: str

    def __post_init__(self) -> None:
        for context in (self.calling, self.called):
            context.sslsocket_class = TlsSocket
        # A ticket would lie unread where a rank only sends, and closing over unread bytes takes back what was sent.
        self.called.num_tickets = 0

    def call(self, one: socket.socket) -> socket.socket:
        """Seal a connection to another worker; its handshake comes."""
        return self.calling.wrap_socket(one, server_hostname=self.name, do_handshake_on_connect=False)

    def take(self, one: socket.socket) -> socket.socket:
        """Seal a connection that somebody made; its handshake comes."""
        return self.called.wrap_socket(one, server_side=True, do_handshake_on_connect=False)


def handshake(one: socket.socket, role: str = "") -> None:
    """Go on with the handshake of a connection, if it is sealed.

    Parameters
    ----------
    role
        Whom the peer's certificate must name; "": that was seen to.

    Raises
    ------
    BlockingIOError
        It waits for the peer.
    OSError
        It failed, or the peer is somebody else.
    """
    if not isinstance(one, TlsSocket):
        return
    one.do_handshake()
    subject = (one.getpeercert() or {}).get("subject", ())
    if role and (("commonName", role),) not in subject:
        raise ssl.SSLCertVerificationError(f"the caller's certificate is no {role}'s")
