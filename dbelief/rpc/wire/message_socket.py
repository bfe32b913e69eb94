"""Sockets that carry the messages of a stream: Unix sockets, and TCP connections, with TLS where there are credentials.

A Unix socket keeps the limits of packets. In a TCP connection each packet follows its length, 4 bytes, little-endian.
One thread uses a socket, or one sends and another receives; any thread may shut it down.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
from abc import ABC, abstractmethod

import grpc
import numpy as np

from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.keepalive import KEEPALIVE

from . import frames

_HEAD = struct.Struct("<IB")
"""Length of what follows it, and the first byte of that: the kind of the packet."""
_LONGEST = 64 << 20
"""Bytes of a packet in a TCP connection at most, as of a message of gRPC."""
_LINGER_S = 1.0
"""Longest wait, in seconds, for a client to close the connection after a status."""
_AT_ONCE = 1 << 18
"""Bytes that TLS encrypts before they are sent, and that are received before it decrypts them."""
_PROBES = 4
"""Keepalive probes within the time after which a silent connection is closed."""


class MessageSocket(ABC):
    """Messages in both directions, and at most one status, which ends the stream."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @abstractmethod
    def queue(self, message: bytes) -> None:
        """Set the message that `flush` sends next; the one before it was sent.

        Raises
        ------
        Rejected
            It is too large.
        """

    @abstractmethod
    def flush(self, wait: bool = False) -> bool:
        """Send the queued message, or as much of it as there is room for; whether it was sent. Raises OSError.

        `wait`: for room, until it was.
        """

    @abstractmethod
    def receive(self) -> frames.Received | None:
        """Wait for the next message; None where the peer has ended the connection.

        Raises
        ------
        frames.StreamEnded
            A status, or what is none of this version's packets.
        OSError
            The connection is broken.
        """

    @abstractmethod
    def send_status(self, code: grpc.StatusCode, reason: str) -> None:
        """Send a status, as the last packet. Raises OSError."""

    def send(self, message: bytes) -> None:
        """Send a message; waits for room. Raises OSError, and Rejected where it is too large."""
        self.queue(message)
        self.flush(wait=True)

    def wait(self, room: bool, timeout_s: float | None = None) -> tuple[bool, bool]:
        """Wait until something can be received, or, with `room`, sent; whether each can be.

        At most `timeout_s` seconds; None: without a limit. A socket that is shut down can be received from.
        """
        waits = select.poll()
        waits.register(self._socket, select.POLLIN | (select.POLLOUT if room else 0))
        found = waits.poll(None if timeout_s is None else 1000 * timeout_s)
        event = found[0][1] if found else 0
        return bool(event & ~select.POLLOUT), bool(event & select.POLLOUT)

    def shut_down(self) -> None:
        """End the connection: a thread that waits to send or receive returns. The socket stays open."""
        with contextlib.suppress(OSError):  # the peer, or another thread, has closed it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; no thread uses it any more."""
        self._socket.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed on this side."""
        return self._socket.fileno() < 0


class PacketSocket(MessageSocket):
    """Unix socket of kind `frames.KIND`, after `frames.prepare`. Its packets have less than `frames.LARGEST` bytes."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._buffer = memoryview(bytearray(frames.LARGEST + 1))
        self._unsent: bytes | None = None

    def queue(self, message: bytes) -> None:
        """See `MessageSocket.queue`."""
        self._unsent = frames.message(message)

    def flush(self, wait: bool = False) -> bool:
        """See `MessageSocket.flush`."""
        if self._unsent is not None:
            try:
                self._socket.send(self._unsent, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            self._unsent = None
        return True

    def receive(self) -> bytes | None:
        """See `MessageSocket.receive`."""
        size = self._socket.recv_into(self._buffer)
        return frames.content(self._buffer[:size]) if size else None

    def send_status(self, code: grpc.StatusCode, reason: str) -> None:
        """See `MessageSocket.send_status`."""
        self._socket.send(frames.status(code, reason))


class ByteSocket(MessageSocket):
    """TCP connection. Without TLS a message is sent from where it is, and received into one array: no other copy."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._unsent: list[memoryview] = []
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(connection)

    def queue(self, message: bytes) -> None:
        """See `MessageSocket.queue`."""
        size = len(message) + 1
        if size > _LONGEST:
            raise Rejected(f"a message of {len(message)} bytes is too large for a stream")
        self._unsent = [memoryview(_HEAD.pack(size, frames.MESSAGE)), memoryview(message)]

    def flush(self, wait: bool = False) -> bool:
        """See `MessageSocket.flush`."""
        while self._unsent:
            try:
                sent = self._send_some(wait)
            except BlockingIOError:
                return False
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if self._unsent:
                self._unsent[0] = self._unsent[0][sent:]
        return True

    def receive(self) -> frames.Received | None:
        """See `MessageSocket.receive`."""
        head = self._read(_HEAD.size)
        if head is None:
            return None
        size, kind = _HEAD.unpack(head)
        if not 0 < size <= _LONGEST:
            raise frames.StreamEnded(grpc.StatusCode.INVALID_ARGUMENT, f"a packet of {size} bytes")
        content = self._read(size - 1)
        if content is None:
            raise ConnectionResetError("the peer has ended the connection within a message")
        return content if kind == frames.MESSAGE else frames.content(memoryview(bytes([kind]) + content))

    def send_status(self, code: grpc.StatusCode, reason: str) -> None:
        """See `MessageSocket.send_status`; waits until the client has closed the connection, `_LINGER_S` at most."""
        packet = frames.status(code, reason)
        self._unsent = [memoryview(_HEAD.pack(len(packet), packet[0])), memoryview(packet)[1:]]
        self.flush(wait=True)
        # A connection that is closed with unread messages is reset, and the client may then not get the status.
        self._socket.settimeout(_LINGER_S)
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(frames.LARGEST):
            pass

    def first_bytes(self, size: int, until_s: float) -> bytes:
        """The first bytes of the connection; fewer where it ends before. Raises OSError, TimeoutError at `until_s`."""
        found = b""
        while len(found) < size:
            _set_deadline(self._socket, until_s)
            if not (some := self._socket.recv(size - len(found))):
                break
            found += some
        self._socket.settimeout(None)
        return found

    def send_bytes(self, first: bytes) -> None:
        """Send bytes before the first message. Raises OSError."""
        self._unsent = [memoryview(first)]
        self.flush(wait=True)

    def _send_some(self, wait: bool) -> int:
        """Bytes of the unsent ones that were sent; raises BlockingIOError where there is no room, without `wait`."""
        return self._socket.sendmsg(self._unsent, (), 0 if wait else socket.MSG_DONTWAIT)

    def _read(self, size: int) -> frames.Received | None:
        """So many bytes; None where the connection ends before them."""
        read = self._socket.recv(size, socket.MSG_WAITALL) if size else b""
        while len(read) < size:
            more = self._socket.recv(size - len(read), socket.MSG_WAITALL)
            if not more:
                break
            read += more
        return _complete(read, size)


class TlsSocket(ByteSocket):
    """TCP connection with TLS.

    Records are encrypted and decrypted in memory, and sent and received many at a time. TLS on the socket itself calls
    the system for each record of 16 KiB, and wakes the peer for each: twice the processor time.

    Parameters
    ----------
    name
        Of the server, which its certificate must show; None: this side is the server.
    until_s
        End of the handshake, by the monotonic clock.

    Raises
    ------
    OSError
        The handshake has failed, or was not over in time.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, name: str | None, until_s: float) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=name is None, server_hostname=name)
        self._lock = runtime.lock()  # one thread may send and another receive, and they share the state of TLS
        self._buffer = memoryview(bytearray(_AT_ONCE))
        self._records = memoryview(b"")  # encrypted, and not sent
        self._in_records = 0  # bytes of the unsent ones that they hold
        super().__init__(connection)
        self._shake_hands(until_s)

    def wait(self, room: bool, timeout_s: float | None = None) -> tuple[bool, bool]:
        """See `MessageSocket.wait`."""
        with self._lock:
            received = self._tls.pending() or self._incoming.pending
        return (True, False) if received else super().wait(room, timeout_s)

    def first_bytes(self, size: int, until_s: float) -> bytes:
        """See `ByteSocket.first_bytes`."""
        found = b""
        while len(found) < size:
            some = self._decrypted(size - len(found))
            if some == b"" or (some is None and not self._fill(until_s)):
                break
            found += some or b""
        self._socket.settimeout(None)
        return found

    def _shake_hands(self, until_s: float) -> None:
        """Raises OSError, after an alert to the peer where there is one."""
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    return
                except ssl.SSLWantReadError:
                    self._socket.sendall(self._outgoing.read())
                    if not self._fill(until_s):
                        raise ConnectionResetError("the peer has ended the connection within the handshake") from None
        finally:
            with contextlib.suppress(OSError):
                self._socket.sendall(self._outgoing.read())
            self._socket.settimeout(None)

    def _send_some(self, wait: bool) -> int:
        if not self._records:
            with self._lock:
                self._in_records = self._encrypt()
                self._records = memoryview(self._outgoing.read())
        while self._records:
            sent = self._socket.send(self._records, 0 if wait else socket.MSG_DONTWAIT)
            self._records = self._records[sent:]
        self._records = memoryview(b"")  # releases what was sent
        return self._in_records

    def _encrypt(self) -> int:
        """Encrypt the next of the unsent bytes; how many."""
        done = 0
        for part in self._unsent:
            part = part[: _AT_ONCE - done]
            while part:
                taken = self._tls.write(part)
                part, done = part[taken:], done + taken
        return done

    def _read(self, size: int) -> frames.Received | None:
        read = np.empty(size, np.uint8).data  # not a bytearray, which would be zeroed first
        filled = 0
        while filled < size:
            try:
                with self._lock:
                    more = int(self._tls.read(size - filled, read[filled:]))  # with a buffer: how many
            except ssl.SSLWantReadError:
                if not self._fill():
                    break
            except ssl.SSLZeroReturnError:
                break
            else:
                if not more:
                    break
                filled += more
        return _complete(read[:filled].toreadonly(), size)

    def _decrypted(self, most: int) -> bytes | None:
        """What has been received; b"" at the end, None where no record is complete."""
        try:
            with self._lock:
                return self._tls.read(most)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return b""

    def _fill(self, until_s: float | None = None) -> bool:
        """Receive what has arrived, and wait for it; False where the peer has ended the connection."""
        if until_s is not None:
            _set_deadline(self._socket, until_s)
        count = self._socket.recv_into(self._buffer)
        with self._lock:
            self._incoming.write(self._buffer[:count])
        return count > 0


def _complete(read: frames.Received, size: int) -> frames.Received | None:
    if read and len(read) < size:
        raise ConnectionResetError("the peer has ended the connection within a message")
    return read if len(read) == size else None


def _set_deadline(connection: socket.socket, until_s: float) -> None:
    """Let the next call of the system end by then; raises TimeoutError where the time is over."""
    left_s = until_s - runtime.monotonic()
    if left_s <= 0:
        raise TimeoutError("the peer has not sent its first bytes in time")
    connection.settimeout(left_s)


def _keep_alive(connection: socket.socket) -> None:
    """Close a connection whose peer's machine is gone, as gRPC does with its own."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, round(KEEPALIVE.time_s))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, round(KEEPALIVE.timeout_s / _PROBES))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * KEEPALIVE.timeout_s))
