"""Messages on one connection: directly from arrays into the kernel, and from the kernel directly into arrays.

Each message has a header of 24 bytes: tag, bytes, dtype. Nothing is read unless a receive is pending: the kernel's
back-pressure holds the sender. A message with another tag that arrives before the awaited one is buffered until its
receive is posted; this is the only copy.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import defaultdict, deque

import numpy as np

from ..engine import Message

HEAD = struct.Struct("<iQ12s")
WAKE_BYTES = 1 << 16
"""Bytes of a long message that must arrive before its reader wakes; waking costs more than reading; TCP only."""


class Transfer:
    """One message of this rank, and its outcome.

    Attributes
    ----------
    through
        The message was sent or received.
    misfit
        Description of the received message, if it has another size or dtype.
    """

    __slots__ = ("kind", "message", "misfit", "through", "view")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.kind = message.array.dtype.str.encode()
        self.view = memoryview(message.array.reshape(-1).view(np.uint8))
        self.through = False
        self.misfit: str | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.through or self.misfit is not None


class _Incoming:
    """Message whose header has been read: the destination of its body, and its receive, if known."""

    __slots__ = ("bytes", "kept", "kind", "tag", "transfer", "whole")

    def __init__(self, head: memoryview) -> None:
        self.tag, self.bytes, kind = HEAD.unpack(head)
        self.kind: bytes = kind.rstrip(b"\0")
        self.transfer: Transfer | None = None
        self.kept: memoryview | None = None
        self.whole = False

    def fits(self, transfer: Transfer) -> bool:
        """Whether it matches a receive; if not, the receive ends with `misfit`."""
        if (self.bytes, self.kind) != (len(transfer.view), transfer.kind):
            dtype = np.dtype(self.kind.decode())
            transfer.misfit = f"{self.bytes // max(dtype.itemsize, 1)} {dtype}"
            return False
        return True

    def finish(self) -> None:
        """Mark the message as completely received, and complete its receive, if any."""
        self.whole = True
        if self.transfer is not None:
            if self.kept is not None:
                self.transfer.view[:] = self.kept
            self.transfer.through = True


class Connection:
    """This rank's non-blocking end of the connection to one peer.

    `write` and `read` raise OSError if the connection broke, and EOFError if the peer closed it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sealed = isinstance(connection, ssl.SSLSocket)
        self._leaving: deque[tuple[Transfer, list[memoryview]]] = deque()
        self._posted: defaultdict[int, deque[Transfer]] = defaultdict(deque)
        self._kept: defaultdict[int, deque[_Incoming]] = defaultdict(deque)
        self._expected = 0
        self._head = memoryview(bytearray(HEAD.size))
        self._coming: _Incoming | None = None
        self._room = self._head
        self._wake_bytes = 1

    @property
    def sends(self) -> bool:
        """Whether messages are still to be sent."""
        return bool(self._leaving)

    @property
    def expects(self) -> bool:
        """Whether a receive is pending."""
        return self._expected > 0

    def post(self, transfer: Transfer) -> None:
        """Queue a message for sending or receiving; nothing is transferred yet."""
        message = transfer.message
        if message.sends:
            head = HEAD.pack(message.tag, len(transfer.view), transfer.kind)
            self._leaving.append((transfer, [memoryview(head), transfer.view]))
        elif kept := self._kept.get(message.tag):
            if kept[0].fits(transfer):
                first = kept.popleft()
                first.transfer = transfer
                if first.whole:
                    first.finish()
                else:
                    self._expected += 1
        else:
            self._posted[message.tag].append(transfer)
            self._expected += 1

    def write(self) -> None:
        """Send what the kernel accepts."""
        while self._leaving:
            transfer, parts = self._leaving[0]
            try:
                sent = self._connection.sendmsg(parts)
            except BlockingIOError:
                return
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]
            else:
                transfer.through = True
                self._leaving.popleft()

    def read(self) -> None:
        """Read what the kernel has, as long as a receive is pending."""
        while self._expected:
            if self._coming is not None and self._room is self._head:
                self._place(self._coming)
                continue
            if self._room:
                try:
                    count = self._connection.recv_into(self._room)
                except BlockingIOError:
                    return self._wake_later()
                if not count:
                    raise EOFError("it closed the connection")
                self._room = self._room[count:]
                if self._room:
                    return self._wake_later()
            if self._coming is None:
                self._coming, self._room = _Incoming(self._head), self._head
            else:
                if self._coming.transfer is not None:
                    self._expected -= 1
                self._coming.finish()
                self._coming, self._room = None, self._head

    def _place(self, coming: _Incoming) -> None:
        """Match a message with its receive, or buffer it if other receives are pending."""
        posted = self._posted[coming.tag]
        while posted and coming.transfer is None:
            first = posted.popleft()
            if coming.fits(first):
                coming.transfer, self._room = first, first.view
            else:
                self._expected -= 1
        if coming.transfer is None and self._expected:
            coming.kept = self._room = memoryview(bytearray(coming.bytes))
            self._kept[coming.tag].append(coming)

    def _wake_later(self) -> None:
        """Let the connection count as ready only when there is enough to read.

        Not with TLS, which has already read a part of the remaining bytes from the kernel; the threshold might never be
        met.
        """
        if self._sealed:
            return
        wanted = min(len(self._room), WAKE_BYTES)
        if wanted != self._wake_bytes:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._wake_bytes = wanted
