"""Packets of the streams that are not gRPC's: of a local one, over a Unix socket (SOCK_SEQPACKET), and of a direct one.

A packet is a kind and then a message, or the status that ends the stream: a code of gRPC and its reason. So a call over
such a stream ends with the same errors as one over gRPC.
"""

from __future__ import annotations

import socket

import grpc

from dbelief.errors import Rejected

LARGEST = 1 << 16
"""Bytes of a local stream's packet at most: its messages name segments in shared memory and hold no numbers."""
KIND = socket.SOCK_SEQPACKET

Received = bytes | memoryview
"""A message as it was received: bytes that are not written to."""

MESSAGE, STATUS = range(2)
"""Kinds of packets."""

_MESSAGE, _STATUS = bytes([MESSAGE]), bytes([STATUS])
_ROOM = 4 * LARGEST
_LONGEST_REASON = 4096
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class StreamEnded(grpc.RpcError):
    """A stream has ended with a status, or is broken."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self._status, self._reason = status, reason

    def code(self) -> grpc.StatusCode:
        """As of a call of gRPC."""
        return self._status

    def details(self) -> str:
        """As of a call of gRPC."""
        return self._reason


def prepare(connection: socket.socket) -> None:
    """Make a connection blocking, with room for some packets of any size."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
    connection.settimeout(None)


def message(content: bytes) -> bytes:
    """Packet of a message.

    Raises
    ------
    Rejected
        It is too large.
    """
    if len(content) >= LARGEST:
        raise Rejected(f"a message of {len(content)} bytes is too large for a local stream")
    return _MESSAGE + content


def status(code: grpc.StatusCode, reason: str) -> bytes:
    """Packet of a status."""
    return _STATUS + bytes([code.value[0]]) + reason.encode()[:_LONGEST_REASON]


def content(packet: memoryview) -> bytes:
    """Message in a packet.

    Raises
    ------
    StreamEnded
        The packet holds a status, or is none of this version.
    """
    if len(packet) > LARGEST:
        raise StreamEnded(grpc.StatusCode.INVALID_ARGUMENT, f"a packet has more than {LARGEST} bytes")
    if packet[:1] == _MESSAGE:
        return bytes(packet[1:])
    if packet[:1] == _STATUS and len(packet) > 1:
        code = _CODES.get(packet[1], grpc.StatusCode.UNKNOWN)
        raise StreamEnded(code, bytes(packet[2:]).decode(errors="replace"))
    raise StreamEnded(grpc.StatusCode.INVALID_ARGUMENT, "a packet is neither a message nor a status")
