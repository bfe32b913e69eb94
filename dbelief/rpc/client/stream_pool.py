"""Streams that stay open from one pull or push to the next.

Opening a stream costs about as much as the rest of a small pull or push. So a client pools its streams: it acquires one
for a pull or push, and returns it after the last reply. A broken stream is never returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from dbelief.process.runtime import Lock, Queue, runtime
from dbelief.rpc.channel import open_channel
from dbelief.rpc.wire import frames

_SERVICE = "/dbelief.v1.Parameters/"


class Stream:
    """One call whose requests are supplied in batches.

    Requests are made and sent on a thread of gRPC's, replies are read on the caller's: both run concurrently.
    """

    def __init__(self, method: Callable[[Iterator[bytes]], Any]) -> None:
        self.stale = False
        """Whether it may have broken while idle."""
        self._error: Exception | None = None  # raised while a request was made
        self._given: Queue[tuple[Iterable[bytes], Lock | None] | None] = runtime.queue()
        self._ahead: Lock | None = None  # of the requests given last: messages that may be sent before a reply
        self._ended = False
        self._call = method(self._requests())

    def give(self, requests: Iterable[bytes], window: int | None = None) -> None:
        """Queue these requests; each is made when the one before it has been sent.

        `window`: messages that may be sent before a reply allows one more (`credit`); None: all.
        """
        self._ahead = runtime.semaphore(window) if window is not None else None
        self._given.put((requests, self._ahead))

    def credit(self) -> None:
        """Allow one more message: a reply has answered one."""
        if self._ahead is not None:
            self._ahead.release()

    @property
    def open(self) -> bool:
        """Whether neither side has ended it, as far as is known here."""
        active: bool = self._call.is_active()
        return active

    def answer(self) -> Any:
        """The next reply; None where the peer has ended the stream.

        Raises
        ------
        grpc.RpcError
            It broke.
        Exception
            The error on this side, while a request was made.
        """
        try:
            answer = next(self._call, None)
        except grpc.RpcError:
            if self._error is not None:
                raise self._error from None
            raise
        self.stale = False
        return answer

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()
        self.end()

    def end(self) -> None:
        """Half-close: no more requests follow; the peer then ends the stream."""
        self._ended = True
        self.credit()  # a request that waits for the window is not made
        self._given.put(None)

    def _requests(self) -> Iterator[bytes]:
        while (given := self._given.get()) is not None:
            try:
                yield from self._within_window(*given)
            except Exception as error:  # gRPC would log it and send the peer another error
                self._error = error
                self._call.cancel()
                return

    def _within_window(self, requests: Iterable[bytes], ahead: Lock | None) -> Iterator[bytes]:
        left = iter(requests)
        while ahead is None or (ahead.acquire() and not self._ended):
            if (request := next(left, None)) is None:
                return
            yield request


def _to_shard(address: str) -> grpc.Channel:
    return open_channel(address, "ps")


class StreamPool:
    """Streams of one client, by address and method; safe to use from several threads.

    Parameters
    ----------
    open
        Makes a channel to an address.
    """

    def __init__(self, open: Callable[[str], grpc.Channel] = _to_shard) -> None:
        self._open = open
        self._channels: dict[str, grpc.Channel] = {}
        self._methods: dict[tuple[str, str], Callable[[Iterator[bytes]], Any]] = {}
        self._idle: dict[tuple[str, str], list[Stream]] = {}
        self._lock = runtime.lock()

    def acquire(self, address: str, method: str) -> Stream:
        """An open, unused stream for `method`: "Pull", "Push", "Exchange", "Attach" or "Carry"."""
        key = address, method
        with self._lock:
            idle = self._idle.get(key, [])
            while idle:
                stream = idle.pop()
                if stream.open:
                    return stream
                stream.end()
            if key not in self._methods:  # making one costs as much as a call
                self._methods[key] = self._method(address, method)
            return Stream(self._methods[key])

    def put_back(self, address: str, method: str, stream: Stream) -> None:
        """Return a stream, all of whose replies were read, to the pool."""
        stream.stale = True
        with self._lock:
            if (address, method) in self._methods:
                self._idle.setdefault((address, method), []).append(stream)
            else:  # its channel was closed meanwhile
                stream.end()

    def leave(self, address: str) -> None:
        """Close the channel to an address that has no shard any more; streams in use there break."""
        with self._lock:
            channel = self._channels.pop(address, None)
            for key in [key for key in self._methods if key[0] == address]:
                del self._methods[key]
                for stream in self._idle.pop(key, []):
                    stream.end()
        if channel is not None:
            channel.close()

    def call(self, address: str, method: str, request: bytes, timeout_s: float) -> bytes:
        """Reply of a method that has one request and one reply; raises grpc.RpcError, also where `leave` ends it."""
        with self._lock:
            channel = self._channel(address)
        unary: Any = channel.unary_unary(_SERVICE + method, None, None)
        try:
            reply: bytes = unary(request, timeout=timeout_s)
        except ValueError as error:  # another thread has closed the channel
            raise frames.StreamEnded(grpc.StatusCode.CANCELLED, str(error)) from None
        return reply

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open(address)
        return channel

    def _method(self, address: str, method: str) -> Callable[[Iterator[bytes]], Any]:
        opened: Any = self._channel(address).stream_stream(_SERVICE + method, None, None)
        call: Callable[[Iterator[bytes]], Any] = opened
        return call

    def close(self) -> None:
        """End idle streams and close all channels; streams in use break."""
        with self._lock:
            for stream in (stream for idle in self._idle.values() for stream in idle):
                stream.end()
            self._idle.clear()
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()
