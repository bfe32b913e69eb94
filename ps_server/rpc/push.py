"""The stream of pushes that a client sends: openings and segments in, acknowledgements out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

from dbelief.errors import Rejected
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc.wire import bulk, payloads
from dbelief.telemetry.metrics import Metrics

from ..controller import ShardController
from ..store.segment import Outcome
from ..store.shard import SegmentResult
from .shared_memory import ConnectionBlocks
from .upload import UploadHandler, Wait

ACKNOWLEDGE_EVERY = 16
"""Segments per acknowledgement: an answer to each one costs a fifth of a push's speed."""


class PushHandler(UploadHandler):
    """One push, from its opening on."""

    what: ClassVar[str] = "a push"

    def __init__(
        self, life: ShardController, metrics: Metrics, wait: Wait, blocks: ConnectionBlocks, message: bytes
    ) -> None:
        super().__init__(life, metrics, wait, blocks, message)
        self._staged: list[int] = []
        self._reply = wire.PushReply()
        self._acknowledged = 0  # of those acknowledged, how many the client knows of

    @property
    def complete(self) -> bool:
        """Whether all segments that the opening counted are here; never where it did not count them."""
        return 0 < self._count == self._reply.acknowledged

    def answers(self, parts: list[bulk.SegmentPayload]) -> Iterator[wire.PushReply]:
        """See `Transfer`."""
        left = self._count - self._reply.acknowledged if self._count else len(parts)
        if len(parts) > left:
            raise Rejected(f"a push of {self._count} segments went on with segment {parts[left].index}")
        if parts and parts[0].shared:
            taken = self._life.hands.map(self._apply, parts)
        else:
            taken = [self._apply(part) for part in parts]
        for part, one in zip(parts, taken, strict=True):
            self._count_in(part, one)
        yield from self._replies(self.complete)

    def end(self) -> Iterator[wire.PushReply]:
        """All that is done: the opening did not count the segments."""
        yield from self._replies(ended=True)

    def _apply(self, part: bulk.SegmentPayload) -> SegmentResult:
        """Apply one segment."""
        values = self._numbers(part)
        began = time.perf_counter()
        taken = self._shard.push(self._push, part.index, values, part.offset, part.version, payloads.form_of(part))
        self._metrics.apply_seconds.observe(time.perf_counter() - began)
        return taken

    def _count_in(self, part: bulk.SegmentPayload, taken: SegmentResult) -> None:
        """Let a segment that was applied be among those to acknowledge."""
        shard, push, reply = self._shard, self._push, self._reply
        self._count_bytes(part)
        reply.acknowledged += 1
        reply.duplicates += taken.outcome is Outcome.DUPLICATE
        reply.staleness += taken.staleness
        reply.lost = max(reply.lost, taken.lost)
        if shard.staleness == 0 and not push.assign:
            self._staged.append(part.index)
        if taken.outcome is Outcome.DUPLICATE:
            self._metrics.duplicates_total.inc()
        if taken.outcome is Outcome.APPLIED and not push.assign:
            self._metrics.staleness.observe(taken.staleness)

    def _replies(self, ended: bool) -> Iterator[wire.PushReply]:
        """What the client is to be told now: all that is done, when it is complete or much."""
        due = self._reply.acknowledged - self._acknowledged >= ACKNOWLEDGE_EVERY and not self._staged
        if not (ended or due):
            return
        if ended and self._staged:  # with the dial at 0, a push is done when its round is applied
            self._wait(self._shard, self._staged, self._push.clock + 1)
        self._life.wait_replicated()
        self.check_life()  # what a former life applied is not acknowledged in the name of this one
        if ended and self._reply.acknowledged:
            self._record_metrics()
        yield self._reply
        self._acknowledged = self._reply.acknowledged
        self._reply = wire.PushReply(acknowledged=self._acknowledged)
