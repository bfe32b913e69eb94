"""The gRPC face of a shard: messages in, calls on `Shard`, messages out. The only file here that knows the wire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import grpc

from dbelief.errors import Refused
from dbelief.metrics import Metrics
from dbelief.pushes import Pusher
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import parameters_pb2_grpc as stubs
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.channel import answers, streams
from dbelief.rpc.convert import numbers, push_from_wire, pusher_to_wire
from dbelief.rpc.serving import HANDLERS

from .life import Life
from .segment import Outcome
from .shard import Shard

ACKNOWLEDGE_EVERY = 16
"""Segments per acknowledgement: an answer to each one costs a fifth of a push's speed."""


class ShardService(stubs.ParametersServicer):
    """Serves one shard.

    Parameters
    ----------
    metrics
        Collectors of this process.
    deadline_s
        How long a call may wait for a round of the staleness dial.
    record
        Called with (segment, pusher, sequence, rate) for each applied push when the job asks for a log.
    """

    def __init__(
        self,
        metrics: Metrics,
        deadline_s: float = 60.0,
        record: Callable[[int, Pusher, int, float], None] | None = None,
    ) -> None:
        self.life = Life(metrics, deadline_s, record)
        self._metrics = metrics
        # Calls that wait for a round may hold most handlers, never the last: pushes must get through to end a wait.
        self._waiters = threading.BoundedSemaphore(HANDLERS // 2)

    @property
    def where(self) -> str:
        """What the reason of every refusal begins with."""
        return self.life.where

    def refused(self, kind: str) -> None:
        """Count a call that was answered by an error of this kind."""
        self._metrics.refused_total.labels(kind).inc()

    # -- commands of the coordinator ---------------------------------------------------------------------

    @answers
    def Configure(self, request: wire.ConfigureRequest, context: grpc.ServicerContext) -> wire.ConfigureReply:
        """See protos/parameters.proto."""
        return self.life.configure(request)

    @answers
    def Snapshot(self, request: wire.SnapshotRequest, context: grpc.ServicerContext) -> wire.SnapshotReply:
        """See protos/parameters.proto."""
        return self.life.snapshot(request)

    @answers
    def Restore(self, request: wire.RestoreRequest, context: grpc.ServicerContext) -> wire.RestoreReply:
        """See protos/parameters.proto."""
        return self.life.restore(request)

    # -- data --------------------------------------------------------------------------------------------

    @streams
    def Pull(self, request: wire.PullRequest, context: grpc.ServicerContext) -> Iterator[segments.Segment]:
        """See protos/parameters.proto."""
        shard = self.life.at(request.target)
        if request.if_newer_than and len(request.if_newer_than) != len(request.segments):
            raise Refused(f"{len(request.if_newer_than)} versions for {len(request.segments)} segments")
        if shard.staleness is not None and request.HasField("pusher"):
            shard.heard(request.pusher.replica, request.clock)
            self._wait(shard, list(request.segments), request.clock)
        known: list[int | None] = list(request.if_newer_than) or [None] * len(request.segments)
        sent = 0
        for index, newer_than in zip(request.segments, known, strict=True):
            version, data = shard.pull(request.vector, index, newer_than)
            answer = segments.Segment(index=index, version=version, unchanged=data is None)
            if data is not None:
                answer.data = data
                answer.length = shard.segments[index].span.length
                sent += len(data)
            yield answer
        self._metrics.pulls_total.labels(request.vector).inc(len(request.segments))
        self._metrics.bytes_total.labels("sent").inc(sent)

    @streams
    def Push(self, requests: Iterator[wire.PushRequest], context: grpc.ServicerContext) -> Iterator[wire.PushReply]:
        """See protos/parameters.proto."""
        first = next(requests, None)
        if first is None or not first.HasField("opening"):
            raise Refused("a push begins with its opening")
        shard = self.life.at(first.opening.target)
        push = push_from_wire(first.opening)
        staged: list[int] = []
        reply = wire.PushReply()
        received = 0
        for request in requests:
            values = numbers(request.segment)
            began = time.perf_counter()
            taken = shard.push(push, request.segment.index, values, request.segment.offset, request.segment.version)
            self._metrics.apply_seconds.observe(time.perf_counter() - began)
            received += values.nbytes
            reply.acknowledged += 1
            reply.duplicates += taken.outcome is Outcome.DUPLICATE
            reply.staleness += taken.staleness
            reply.lost = max(reply.lost, taken.lost)
            if shard.staleness == 0 and not push.assign:
                staged.append(request.segment.index)
            elif reply.acknowledged % ACKNOWLEDGE_EVERY == 0:
                yield reply
                reply = wire.PushReply(acknowledged=reply.acknowledged)
            if taken.outcome is Outcome.APPLIED and not push.assign:
                self._metrics.staleness.observe(taken.staleness)
        if staged:  # with the dial at 0, a push is done when its round is applied
            self._wait(shard, staged, push.clock + 1)
        self._metrics.pushes_total.labels(push.vector).inc(reply.acknowledged)
        self._metrics.bytes_total.labels("received").inc(received)
        yield reply

    @streams
    def Exchange(
        self, requests: Iterator[wire.ExchangeRequest], context: grpc.ServicerContext
    ) -> Iterator[wire.ExchangeReply]:
        """Not offered by any strategy of this version."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Exchange is not served by this version")
        yield wire.ExchangeReply()

    @answers
    def Operate(self, request: wire.OperateRequest, context: grpc.ServicerContext) -> wire.OperateReply:
        """Not offered by any strategy of this version."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Operate is not served by this version")

    def _wait(self, shard: Shard, indices: list[int], clock: int) -> None:
        if not self._waiters.acquire(blocking=False):
            raise Refused(f"{HANDLERS // 2} calls wait for a round already")
        try:
            shard.wait_for_clock(indices, clock, self.life.deadline_s)
        finally:
            self._waiters.release()

    # -- telling ---------------------------------------------------------------------------------------

    @answers
    def Stats(self, request: wire.StatsRequest, context: grpc.ServicerContext) -> wire.StatsReply:
        """See protos/parameters.proto."""
        shard = self.life.loaded()
        reply = wire.StatsReply(
            shard_epoch=self.life.epoch,
            segments=len(shard.segments),
            parameters=shard.size,
            pushes=shard.counters.pushes,
            pulls=shard.counters.pulls,
            duplicates=shard.counters.duplicates,
            versions=shard.versions(),
        )
        if request.ledgers:
            for (vector, pusher), (lowest, highest) in shard.ledgers().items():
                reply.ledgers.add(pusher=pusher_to_wire(pusher), vector=vector, lowest=lowest, highest=highest)
        return reply
