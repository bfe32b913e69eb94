"""What a client sends in a stream, one push or exchange after another: each its opening, then segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from dbelief.errors import Moved, Rejected
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc.wire import bulk, payloads
from dbelief.rpc.wire.convert import push_from_wire
from dbelief.telemetry.metrics import Metrics

from ..controller import ShardController
from ..store.shard import Shard
from .shared_memory import ConnectionBlocks

Wait = Callable[[Shard, list[int], int], None]


class UploadHandler(ABC):
    """One push or exchange, from its opening on.

    Parameters
    ----------
    wait
        Waits until all rounds before a clock are applied to some segments.
    blocks
        Shared memory that its segments may lie in.
    message
        The `PushOpening`, encoded.

    Attributes
    ----------
    what
        What a client calls it.
    """

    what: ClassVar[str]

    def __init__(
        self, life: ShardController, metrics: Metrics, wait: Wait, blocks: ConnectionBlocks, message: bytes
    ) -> None:
        self.opening = bulk.parse(wire.PushOpening, message)
        self._life, self._metrics, self._wait = life, metrics, wait
        self._area = blocks.area(self.opening.shared) if self.opening.HasField("shared") else None
        self._shard = life.shard_for(self.opening.target)
        self._push = push_from_wire(self.opening)
        self._count = self.opening.segments
        self._received = self._shared = 0  # bytes, of messages and in shared memory

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether all segments that the opening counted are here."""

    @abstractmethod
    def answers(self, parts: list[bulk.SegmentPayload]) -> Iterator[Any]:
        """Apply the segments of one message, and give what the client is to be told now."""

    def end(self) -> Iterator[Any]:
        """What the client is to be told where its stream ends before this is complete."""
        yield from ()

    def _numbers(self, part: bulk.SegmentPayload) -> np.ndarray:
        """A segment's numbers, where they lie or decoded."""
        if not part.shared:
            return payloads.numbers(part)
        if self._area is None:
            raise Rejected(f"segment {part.index}: lies in shared memory, and the opening does not say where")
        span = self._shard.segment(part.index).span
        part.length = span.length  # whole, always
        return self._area.of(span)

    def _count_bytes(self, part: bulk.SegmentPayload) -> None:
        """Count what a segment came as."""
        if part.shared:
            self._shared += 4 * part.length
        elif part.data is not None:
            self._received += part.data.nbytes

    def _record_metrics(self) -> None:
        """Count this as done, and what came with it."""
        self._metrics.pushes_total.labels(self._push.vector).inc()
        self._metrics.bytes_total.labels("received").inc(self._received)
        self._metrics.shared_bytes_total.labels("received").inc(self._shared)

    def check_life(self) -> None:
        """See whether the shard is still in the life that this is meant for.

        Raises
        ------
        Moved
            It is not.
        """
        if self._life.shard_for(self.opening.target) is not self._shard:
            raise Moved(f"was given its segments anew in epoch {self._life.epoch}")


def handle_stream(
    messages: Iterator[bytes],
    kind: type[UploadHandler],
    begin: Callable[[bytes], UploadHandler],
    may_stay: Callable[[], bool],
) -> Iterator[Any]:
    """Take the transfers of one stream, one after another, until it ends or, after one of them, may not stay."""
    under_way: UploadHandler | None = None
    for message in messages:
        opening, parts = bulk.decode(message)
        if opening is not None:
            if under_way is not None:
                raise Rejected(f"{kind.what} was opened before the one before it was complete")
            under_way = begin(opening)
        if under_way is None:
            raise Rejected(f"{kind.what} begins with its opening")
        under_way.check_life()
        yield from under_way.answers(parts)
        if under_way.complete:
            under_way = None
            if not may_stay():
                return
    if under_way is not None:
        yield from under_way.end()
