"""gRPC service of a shard: messages in, calls on `ShardController` and `Shard`, messages out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from dbelief.core.push import PARAMETERS, AppliedPush
from dbelief.errors import Moved, Rejected, Unavailable
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import answers, streams
from dbelief.rpc.pb import coordination_pb2
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb.segments_pb2 import SharedArray
from dbelief.rpc.server.auth import must_be_for
from dbelief.rpc.server.direct_streams import DirectStreamServer
from dbelief.rpc.server.local_streams import LocalStreams
from dbelief.rpc.server.server import HANDLERS
from dbelief.rpc.server.socket_streams import MOST_STREAMS, Handler, SocketContext
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import pusher_to_wire
from dbelief.rpc.wire.frames import Received
from dbelief.telemetry.metrics import Metrics

from ..controller import LOOK_AGAIN_S, ShardController
from ..replication.wire import receive
from ..store.bucket import held
from ..store.shard import Shard
from .exchange import ExchangeHandler
from .pull import PullHandler
from .push import PushHandler
from .shared_memory import BlockView, SharedMemoryRegistry
from .upload import handle_stream

_BYTES: dict[str, tuple[None, Callable[[Any], bytes] | None]] = {
    "Pull": (None, None),
    "Exchange": (None, None),
    "Push": (None, None),
    "Attach": (None, wire.AttachReply.SerializeToString),
    "Carry": (None, wire.CarryReply.SerializeToString),
}
"""Request deserializer and reply serializer of each stream in gRPC; None where messages may be bulk."""


class StreamLimiter:
    """Counter of open streams, one per `with` block. An idle stream may stay open while at most `most` are open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._lock = runtime.lock()

    @property
    def over_limit(self) -> bool:
        """Whether streams must end after their current reply."""
        return self._open > self._most

    def __enter__(self) -> StreamLimiter:
        """Count one more stream."""
        with self._lock:
            self._open += 1
        return self

    def __exit__(self, *raised: object) -> None:
        """Count one stream less."""
        with self._lock:
            self._open -= 1


class ShardService(stubs.ParametersServicer):
    """gRPC service of one shard.

    Parameters
    ----------
    metrics
        Collectors of this process.
    deadline_s
        How long a call may wait for a round of the staleness barrier.
    record
        Called for each applied push if the job enables the log.
    handlers
        Number of threads that the server has for calls.
    shares_memory
        Whether the shard may map the memory of workers on this host.
    direct_host
        Address at which it listens for direct streams, "" for every one; None: it offers none.
    """

    def __init__(
        self,
        metrics: Metrics,
        deadline_s: float = 60.0,
        record: Callable[[AppliedPush], None] | None = None,
        handlers: int = HANDLERS,
        shares_memory: bool = True,
        direct_host: str | None = "127.0.0.1",
    ) -> None:
        self.controller = ShardController(metrics, deadline_s, record)
        self._metrics = metrics
        # Each waiting call holds a handler's thread. Waiting pulls must leave some to the pushes that end the wait.
        self._waiters = {what: runtime.semaphore(handlers // 4) for what in ("pulls", "pushes")}
        self._streams = StreamLimiter(handlers // 2)
        # Those over sockets have threads of their own.
        self._socket_streams = StreamLimiter(2 * MOST_STREAMS)  # of both kinds: it is never exceeded
        self._attached = SharedMemoryRegistry(shares_memory)
        methods: dict[str, Handler] = {name: getattr(self, name) for name in ("Pull", "Push", "Exchange")}
        self._local = LocalStreams({**methods, "Carry": self._carry_locally} if shares_memory else {})
        self._direct = DirectStreamServer(direct_host, methods) if direct_host is not None else None

    def register(self, server: grpc.Server) -> None:
        """Register this service with a server."""
        stubs.add_ParametersServicer_to_server(self, server)
        bulk: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.stream_stream_rpc_method_handler(getattr(self, name), *forms) for name, forms in _BYTES.items()
        }
        server.add_registered_method_handlers("dbelief.v1.Parameters", bulk)

    def end_socket_streams(self) -> None:
        """End the calls that do not end with the server: those over local and direct streams."""
        self._local.close()
        if self._direct is not None:
            self._direct.close()

    @property
    def where(self) -> str:
        """Prefix of every error message."""
        return self.controller.error_prefix

    def refused(self, kind: str) -> None:
        """Count a call that was answered with an error of this kind."""
        self._metrics.refused_total.labels(kind).inc()

    # -- commands of the coordinator ---------------------------------------------------------------------

    @answers
    def Configure(self, request: wire.ConfigureRequest, context: grpc.ServicerContext) -> wire.ConfigureReply:
        """See protos/parameters.proto."""
        return self.controller.configure(request)

    @answers
    def Snapshot(self, request: wire.SnapshotRequest, context: grpc.ServicerContext) -> wire.SnapshotReply:
        """See protos/parameters.proto."""
        return self.controller.snapshot(request)

    @answers
    def Restore(self, request: wire.RestoreRequest, context: grpc.ServicerContext) -> wire.RestoreReply:
        """See protos/parameters.proto."""
        return self.controller.restore(request)

    @answers
    def Operate(self, request: wire.OperateRequest, context: grpc.ServicerContext) -> wire.OperateReply:
        """See protos/parameters.proto."""
        return self.controller.operate(request)

    @answers
    def Give(self, request: wire.GiveRequest, context: grpc.ServicerContext) -> wire.GiveReply:
        """See protos/parameters.proto."""
        return self.controller.give(request)

    # -- data --------------------------------------------------------------------------------------------

    @streams
    def Pull(self, messages: Iterator[Received], context: grpc.ServicerContext) -> Iterator[bytes]:  # type: ignore[override]
        """See protos/parameters.proto; replies are encoded by hand."""
        blocks = functools.partial(self._attached.of, context.peer())
        begin = functools.partial(PullHandler, self.controller, self._metrics, self._wait, blocks)
        with self._limiter(context) as limiter:
            for message in messages:
                yield from begin(bulk.parse(wire.PullRequest, message)).answers()
                if limiter.over_limit:
                    return

    @streams
    def Push(self, messages: Iterator[Received], context: grpc.ServicerContext) -> Iterator[bytes]:  # type: ignore[override]
        """See protos/parameters.proto; requests are decoded here, and replies encoded, by hand."""
        yield from self._transfers(PushHandler, messages, context)

    @streams
    def Exchange(self, messages: Iterator[Received], context: grpc.ServicerContext) -> Iterator[bytes]:  # type: ignore[override]
        """See protos/parameters.proto; requests and replies are encoded by hand."""
        yield from self._transfers(ExchangeHandler, messages, context)

    def _transfers(
        self, kind: type[PushHandler | ExchangeHandler], messages: Iterator[Received], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        blocks = functools.partial(self._attached.of, context.peer())
        begin = functools.partial(kind, self.controller, self._metrics, self._wait, blocks)
        with self._limiter(context) as limiter:
            yield from handle_stream(messages, kind, begin, lambda: not limiter.over_limit, self.controller)

    @streams
    def Carry(self, messages: Iterator[Received], context: grpc.ServicerContext) -> Iterator[wire.CarryReply]:
        """See protos/parameters.proto; requests are decoded here, by hand where they are bulk."""
        areas = functools.partial(self._area, context)
        yield from receive(messages, self.controller.migration_for, areas, self.controller.threads.map)

    def _carry_locally(self, messages: Iterator[Received], context: Any) -> Iterator[bytes]:
        for reply in self.Carry(messages, context):
            yield reply.SerializeToString()

    def _area(self, context: grpc.ServicerContext | SocketContext, array: SharedArray) -> BlockView:
        return self._attached.of(context.peer()).area(array)

    def _limiter(self, context: grpc.ServicerContext | SocketContext) -> StreamLimiter:
        return self._socket_streams if isinstance(context, SocketContext) else self._streams

    def _wait(self, what: str, shard: Shard, indices: list[int], clock: int) -> None:
        waiters = self._waiters[what]
        if not waiters.acquire(blocking=False):
            raise Rejected(f"too many {what} wait for a round already")
        patience_s = min(self.controller.deadline_s, LOOK_AGAIN_S)
        try:
            shard.wait_for_clock(indices, clock, patience_s)
        except Unavailable as error:
            if patience_s < self.controller.deadline_s:
                raise Moved(str(error)) from None
            raise
        finally:
            waiters.release()

    @streams
    def Attach(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[wire.AttachReply]:
        """See protos/parameters.proto."""
        peer = context.peer()
        with self._attached.connected(peer) as answer, self._local.connected(peer) as open_stream:
            for message in messages:
                request = bulk.parse(wire.AttachRequest, message)
                self.controller.shard_for(request.target)
                if not request.HasField("stream"):
                    yield answer(request)
                    continue
                try:
                    must_be_for(request.stream.method, context)
                    open_stream(request.stream.name, request.stream.token, request.stream.method)
                except Rejected as error:
                    yield wire.AttachReply(refusal=str(error))
                else:
                    yield wire.AttachReply(attached=True)

    @answers
    def Open(self, request: wire.OpenRequest, context: grpc.ServicerContext) -> wire.OpenReply:
        """See protos/parameters.proto."""
        self.controller.shard_for(request.target)
        if self._direct is None:
            return wire.OpenReply(refusal="it offers no direct streams")
        try:
            port, token = self._direct.open(context.peer(), request.method)
        except Rejected as error:
            return wire.OpenReply(refusal=str(error))
        return wire.OpenReply(stream=wire.DirectStream(port=port, token=token))

    # -- statistics ------------------------------------------------------------------------------------

    def figures(self) -> coordination_pb2.ShardFigures | None:
        """Statistics of this incarnation for a heartbeat; None before it has segments."""
        shard = self.controller.shard
        if shard is None:
            return None
        received, sent = (
            sum(int(self._metrics.read_counter(name, direction=way)) for name in ("bytes_total", "shared_bytes_total"))
            for way in ("received", "sent")
        )
        figures = coordination_pb2.ShardFigures(
            pushes=shard.counters.pushes / max(1, len(shard.segments)),
            bytes_received=received,
            bytes_sent=sent,
            segments=len(shard.segments),
            parameters=shard.size,
            link_epoch=self.controller.link.epoch,
            in_sync=self.controller.link.confirmed,
            follower_error=self.controller.link.why,
        )
        for name, one in held(shard.tables, list(shard.segments.values())).items():
            self._metrics.table_rows.labels(name).set(one.rows)
            self._metrics.table_bytes.labels(name).set(one.nbytes)
            self._metrics.raise_to("table_rows_evicted_total", one.evicted, table=name)
            self._metrics.raise_to("table_keys_refused_total", one.refused, table=name)
            figures.tables.add(name=name, rows=one.rows, bytes=one.nbytes, evicted=one.evicted, refused=one.refused)
        return figures

    @answers
    def Stats(self, request: wire.StatsRequest, context: grpc.ServicerContext) -> wire.StatsReply:
        """See protos/parameters.proto."""
        shard = self.controller.require_shard()
        reply = wire.StatsReply(
            shard_epoch=self.controller.epoch,
            segments=len(shard.segments),
            parameters=shard.size,
            pushes=shard.counters.pushes,
            pulls=shard.counters.pulls,
            duplicates=shard.counters.duplicates,
            versions=shard.versions(),
            lost=shard.lost(),
        )
        if request.ledgers:
            lost_of = shard.lost_of()
            for (vector, pusher), (lowest, highest) in shard.ledgers().items():
                lost = lost_of.get(pusher, 0) if vector == PARAMETERS else 0
                reply.ledgers.add(
                    pusher=pusher_to_wire(pusher),
                    vector=vector,
                    lowest=lowest.sequence,
                    highest=highest.sequence,
                    lost=lost,
                    lease=lowest.lease,
                    position=lowest.position,
                )
        return reply
