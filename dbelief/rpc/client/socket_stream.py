"""Streams to a shard over a socket: to one on this host, or a direct one over TCP.

The caller's thread sends and receives, without a thread of gRPC's between: a small message and its reply cost a tenth
of the processor time over a Unix socket; over TCP a step of a small model costs two thirds (decision 0021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import grpc

from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import MessageSocket

_ROOM_S = 0.05
"""Longest wait for room, in seconds, before the caller turns to its other shards."""


class SocketStream:
    """What `Stream` is over gRPC. One thread uses it, and ends it; any thread may cancel it.

    Where requests are sent by `post` alone, another thread may read the replies.
    """

    def __init__(self, connection: MessageSocket) -> None:
        self.stale = False
        """Whether it may have broken while idle."""
        self._socket = connection
        self._requests: Iterator[bytes] = iter(())
        self._queued = False  # whether a message waits for room
        self._left: float = 0  # messages that may be sent before a reply
        self._begun = self._refused = False  # whether one of the requests given last was sent; and one not

    def give(self, requests: Iterable[bytes], window: int | None = None) -> bool:
        """Send these requests; what the socket has no room for soon, or exceeds `window`, while replies are read.

        Returns
        -------
        bool
            False where the stream was idle and the shard has ended it: no request was sent.
        """
        self._requests, self._left = iter(requests), math.inf if window is None else window
        self._begun = self._refused = False
        self._send()
        # The shard reads meanwhile: without a wait it would get the rest only after the replies of other shards.
        while self._queued and self._socket.wait(room=True, timeout_s=_ROOM_S) == (False, True):
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
            self._socket.send(request)
        except OSError as error:
            raise _broken(error) from None

    @property
    def unsent(self) -> bool:
        """Whether a request waits for room."""
        return self._queued

    def credit(self) -> None:
        """Allow one more message: a reply has answered one."""
        self._left += 1

    def answer(self) -> frames.Received | None:
        """The next reply; None where the shard has ended the stream.

        Raises
        ------
        grpc.RpcError
            The shard has refused a request, or the stream is broken.
        """
        self._send()
        while self._queued and not self._socket.wait(room=True)[0]:
            self._send()
        try:
            reply = self._receive()
        except OSError as error:
            raise _broken(error) from None
        if reply is not None:
            self.stale = False
        return reply

    def readable(self, timeout_s: float) -> bool:
        """Wait until `answer` returns at once; False after `timeout_s`."""
        return self._socket.wait(room=False, timeout_s=timeout_s)[0]

    def _receive(self) -> frames.Received | None:
        try:
            return self._socket.receive()
        except ConnectionResetError:
            # The shard has closed the socket before it had read all requests. The status that it sent is still there.
            return self._socket.receive()

    def cancel(self) -> None:
        """Disconnect; a thread that waits for a reply gets none."""
        self._socket.shut_down()

    def end(self) -> None:
        """Close the socket; no other thread uses the stream any more."""
        self._socket.close()

    def _send(self) -> None:
        """Send as many requests as the window and the socket have room for."""
        while self._queued or self._next():
            try:
                if not self._socket.flush():
                    return
            except (BrokenPipeError, ConnectionResetError):
                # The shard has ended the stream: the next reply is its status, or none.
                self._requests, self._refused = iter(()), True
            except OSError:
                # The way to it has failed, perhaps while the stream was idle: there is no reply.
                self._requests, self._refused = iter(()), True
                self._socket.shut_down()
            else:
                self._begun = True
            self._queued = False

    def _next(self) -> bool:
        """Queue the next message; False where there is none, or the window is closed."""
        if self._left <= 0 or (request := next(self._requests, None)) is None:
            return False
        self._left -= 1
        self._socket.queue(request)
        self._queued = True
        return True


def _broken(error: OSError) -> frames.StreamEnded:
    return frames.StreamEnded(grpc.StatusCode.UNAVAILABLE, error.strerror or str(error))
