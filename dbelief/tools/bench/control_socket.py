"""Control channel between the measuring process and its peers: JSON lines over a socket, and blocks of bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Any

from dbelief.errors import Unavailable

WAIT_S = 120.0
"""Timeout of either end without a message, in seconds."""


class Line:
    """A connection for JSON lines, interleaved with blocks of bytes of a known length."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(WAIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_in_kernel(self) -> None:
        """Use the socket in blocking mode: a call waits in the kernel, without a new call for each ready part."""
        self._socket.settimeout(None)
        for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(WAIT_S), 0))

    def send_message(self, message: Any) -> None:
        """Send one line; a closed connection is detected when the answer is missing."""
        self.send(memoryview(json.dumps(message).encode() + b"\n"))

    def receive_message(self) -> Any:
        """The next line; None where the peer has closed the connection."""
        line = bytearray()
        while not line.endswith(b"\n"):  # byte by byte: the bytes after the line may be a block
            byte = bytearray(1)
            if not self._fill(memoryview(byte)):
                return None
            line += byte
        return json.loads(line)

    def send(self, block: memoryview) -> None:
        """Send a block; a closed connection is detected later, as in `send_message`."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(block)

    def receive(self, block: memoryview) -> None:
        """Receive a block into memory."""
        filled = 0
        while filled < len(block):
            count = self._fill(block[filled:])
            if not count:
                raise Unavailable("the other end of the socket is gone")
            filled += count

    def _fill(self, block: memoryview) -> int:
        try:
            return self._socket.recv_into(block)
        except ConnectionError:
            return 0
        except (TimeoutError, BlockingIOError):
            raise Unavailable(f"nothing came through the socket for {WAIT_S:g} s") from None

    def close(self) -> None:
        """Close the connection; the peer then exits."""
        self._socket.close()
