"""Direct streams of one client: TCP connections to shards for small messages, without gRPC and HTTP/2.

A stream is opened when the first call needs it, and kept for the next ones. Where a shard offers none, or its port
cannot be reached, as behind a firewall that lets only gRPC's through, calls use gRPC.
"""

from __future__ import annotations

import logging
import ssl

import grpc

from dbelief.core.placement import ShardPlacement
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import host_and_port
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.transport import transport
from dbelief.security import current

from .socket_stream import SocketStream
from .stream_pool import StreamPool

log = logging.getLogger(__name__)

OPEN_S = 1.0
"""Timeout of the call that asks for a stream, and of the connection."""
_OF_ANY_CALL = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED)
"""What the call that needs the stream gets too, over gRPC: a shard that is gone, or that has another incarnation."""
_AGAIN_S, _LONGEST_S = 30.0, 3600.0
"""Time without attempts after a failed one, in seconds; twice as long after each, up to an hour. An attempt to reach a
port from which nothing comes back takes `OPEN_S` of a step."""


class DirectStreams:
    """Streams by incarnation of a shard and method; safe to use from several threads.

    Parameters
    ----------
    job
        The job's id.
    streams
        Has the channels of gRPC over which streams are asked for.
    wanted
        Whether there are any; an attribute too.
    logs
        Whether it logs shards that are not reached.
    """

    def __init__(self, job: str, streams: StreamPool, wanted: bool, logs: bool) -> None:
        self._job, self._streams, self.wanted, self._logs = job, streams, wanted, logs
        self._idle: dict[str, dict[str, list[SocketStream]]] = {}  # by address and method
        self._epochs: dict[str, int] = {}  # by address: incarnation of the shard that the idle streams lead to
        self._pauses: dict[str, tuple[float, float]] = {}  # by address: end of the pause, and its length
        mine = current()
        self._tls = mine.context(ssl.Purpose.SERVER_AUTH) if mine is not None and wanted else None
        self._lock = runtime.lock()

    def acquire(self, place: ShardPlacement, method: str) -> SocketStream | None:
        """An unused stream; None where the shard opens none.

        Cost: the first of a method and incarnation is a call of gRPC and a connection, of `OPEN_S` each at most.
        """
        if not self.wanted:
            return None
        with self._lock:
            if self._epochs.get(place.address) != place.shard_epoch:
                self._forget(place.address)
                self._epochs[place.address] = place.shard_epoch
            if idle := self._idle.get(place.address, {}).get(method):
                return idle.pop()
            if place.address in self._pauses and runtime.monotonic() < self._pauses[place.address][0]:
                return None
        return self._open(place, method)

    def put_back(self, place: ShardPlacement, method: str, stream: SocketStream) -> None:
        """Return a stream, all of whose replies were read, to the idle ones."""
        stream.stale = True
        with self._lock:
            if self._epochs.get(place.address) == place.shard_epoch:
                self._idle.setdefault(place.address, {}).setdefault(method, []).append(stream)
            else:
                stream.end()

    def leave(self, address: str) -> None:
        """Close the idle streams to an address that has no shard any more."""
        with self._lock:
            self._forget(address)

    def close(self) -> None:
        """Close the idle streams."""
        for address in list(self._epochs):
            self.leave(address)

    def _forget(self, address: str) -> None:
        for idle in self._idle.pop(address, {}).values():
            for stream in idle:
                stream.end()
        self._epochs.pop(address, None)
        self._pauses.pop(address, None)

    def _open(self, place: ShardPlacement, method: str) -> SocketStream | None:
        target = wire.Target(job=self._job, shard_epoch=place.shard_epoch, run_id=place.run_id)
        request = wire.OpenRequest(target=target, method=method)
        try:
            raw = self._streams.call(place.address, "Open", request.SerializeToString(), OPEN_S)
        except grpc.RpcError as error:
            if error.code() not in _OF_ANY_CALL:
                self._note(place, error.details() or error.code().name.lower())
            return None
        reply = wire.OpenReply.FromString(raw)
        if not reply.HasField("stream"):
            self._note(place, reply.refusal)
            return None
        try:
            host = host_and_port(place.address)[0].strip("[]")
            connection = transport.connect(host, reply.stream.port, reply.stream.token, self._tls, OPEN_S)
            return SocketStream(connection)
        except OSError as error:
            self._note(place, f"no connection to its port {reply.stream.port}: {error.strerror or error}")
            return None

    def _note(self, place: ShardPlacement, why: str) -> None:
        """Attempt no other stream for some time."""
        with self._lock:
            _, before_s = self._pauses.get(place.address, (0.0, 0.0))
            pause_s = min(2 * before_s, _LONGEST_S) or _AGAIN_S
            self._pauses[place.address] = runtime.monotonic() + pause_s, pause_s
            first = not before_s
        if first and self._logs:
            log.info(f"small messages to shard {place.shard} at {place.address} go over gRPC: {why}")
