"""Streams to a shard on this host, over a Unix socket: messages that name segments in shared memory.

The caller's thread sends and receives, without a thread of gRPC's between: a message and its reply cost a tenth of the
processor time.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import select
import socket
from collections.abc import Iterable, Iterator

import grpc

from dbelief.rpc.wire import frames
from dbelief.security.named_socket import CONNECT_S
from dbelief.security.same_user import same_user


class LocalStream:
    """What `Stream` is over gRPC. One thread uses it, and ends it; any thread may cancel it.

    Where requests are sent by `post` alone, another thread may read the replies.

    Parameters
    ----------
    connection
        Blocking socket to the shard.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.stale = False
        """Whether it may have broken while idle."""
        self._socket = connection
        self._buffer = memoryview(bytearray(frames.LARGEST + 1))
        self._requests: Iterator[bytes] = iter(())
        self._unsent: bytes | None = None  # a packet for which the socket has no room yet
        self._left: float = 0  # messages that may be sent before a reply
        self._begun = self._refused = False  # whether one of the requests given last was sent; and one not

    def give(self, requests: Iterable[bytes], window: int | None = None) -> bool:
        """Send these requests; what the socket has no room for, or exceeds `window`, while replies are read.

        Returns
        -------
        bool
            False where the stream was idle and the shard has ended it: no request was sent.
        """
        self._requests, self._left = iter(requests), math.inf if window is None else window
        self._begun = self._refused = False
        self._send()
        return self._begun or not (self.stale and self._refused)

    def post(self, request: bytes) -> None:
        """Send one request; waits for room.

        Raises
        ------
        grpc.RpcError
            The stream is broken.
        Rejected
            It is too large.
        """
        try:
            self._socket.send(frames.message(request))
        except OSError as error:
            raise frames.StreamEnded(grpc.StatusCode.UNAVAILABLE, error.strerror or str(error)) from None

    def credit(self) -> None:
        """Allow one more message: a reply has answered one."""
        self._left += 1

    def answer(self) -> bytes | None:
        """The next reply; None where the shard has ended the stream.

        Raises
        ------
        grpc.RpcError
            The shard has refused a request, or the stream is broken.
        """
        self._send()
        while self._unsent is not None and not self._replied():
            self._send()
        try:
            size = self._receive()
        except OSError as error:
            raise frames.StreamEnded(grpc.StatusCode.UNAVAILABLE, error.strerror or str(error)) from None
        if not size:
            return None
        content = frames.content(self._buffer[:size])
        self.stale = False
        return content

    def readable(self, timeout_s: float) -> bool:
        """Wait until `answer` returns at once; False after `timeout_s`."""
        waits = select.poll()
        waits.register(self._socket, select.POLLIN)
        return bool(waits.poll(1000 * timeout_s))

    def _receive(self) -> int:
        try:
            return self._socket.recv_into(self._buffer)
        except ConnectionResetError:
            # The shard has closed the socket before it had read all requests. The status that it sent is still there.
            return self._socket.recv_into(self._buffer)

    def cancel(self) -> None:
        """Disconnect; a thread that waits for a reply gets none."""
        with contextlib.suppress(OSError):  # the shard has closed it
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Close the socket; no other thread uses the stream any more."""
        self._socket.close()

    def _send(self) -> None:
        """Send as many requests as the window and the socket have room for."""
        while self._unsent is not None or self._next():
            assert self._unsent is not None
            try:
                self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                # The shard has ended the stream: the next reply is its status, or none.
                self._requests, self._refused = iter(()), True
            except OSError as error:
                raise frames.StreamEnded(grpc.StatusCode.UNAVAILABLE, error.strerror or str(error)) from None
            else:
                self._begun = True
            self._unsent = None

    def _next(self) -> bool:
        """Make the next packet; False where there is none, or the window is closed."""
        if self._left <= 0 or (request := next(self._requests, None)) is None:
            return False
        self._left -= 1
        self._unsent = frames.message(request)
        return True

    def _replied(self) -> bool:
        """Wait until a reply can be read, or a request sent; whether the former."""
        waits = select.poll()
        waits.register(self._socket, select.POLLIN | select.POLLOUT)
        return any(event & ~select.POLLOUT for _, event in waits.poll())


def accept(door: socket.socket, token: bytes) -> socket.socket | None:
    """The connection of the shard that shows the token; None where another process has connected, or none has.

    Cost: a shard connects before it replies, so this does not wait.
    """
    door.settimeout(CONNECT_S)
    try:
        connection, _ = door.accept()
    except OSError:
        return None
    connection.settimeout(CONNECT_S)
    with contextlib.suppress(OSError):
        if same_user(connection) and hmac.compare_digest(connection.recv(len(token)), token):
            frames.prepare(connection)
            return connection
    connection.close()
    return None
