"""Upload stream of a client: one push or exchange after another, each an opening and then segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from dbelief.errors import Moved, Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk, payloads, row_payloads
from dbelief.rpc.wire.convert import push_from_wire
from dbelief.rpc.wire.frames import Received
from dbelief.telemetry.metrics import Metrics

from ..controller import ShardController
from ..store.concurrency import MIN_BYTES_PER_THREAD
from ..store.shard import Shard
from .shared_memory import ConnectionBlocks

Wait = Callable[[str, Shard, list[int], int], None]
"""Blocks until all rounds before a clock are applied to the given segments. The first argument is what waits: "pulls"
or "pushes"."""
TURN_S = 0.1
"""How long a small message waits for its turn, in seconds: one that is stuck does not hold up the others for longer."""
WAITS = None
"""In the place of a reply: the next one waits for another process, and is not made in the turn."""
Blocks = Callable[[], ConnectionBlocks]


def _in_turn(
    controller: ShardController, parts: Sequence[bulk.SegmentPayload], replies: Iterator[Any]
) -> Iterator[Any]:
    """Make the replies to a message with these segments; for small ones, no two streams do so at the same time.

    Their threads share the interpreter lock, and release it for some microseconds at each copy and each rule. Without
    turns they wait for each other there, ten times in a push, which costs as much as the push.
    """
    if not (_is_short(controller, parts) and controller.turn.acquire(timeout=TURN_S)):
        yield from (reply for reply in replies if reply is not WAITS)
        return
    made: list[Any] = []
    error: Exception | None = None
    try:
        for reply in replies:
            if reply is WAITS:
                break
            made.append(reply)
    except Exception as raised:  # the replies made before it are in the list
        error = raised
    finally:
        controller.turn.release()
    yield from made  # not within the turn: a client may be slow to read
    if error is not None:
        raise error
    yield from replies


def _is_short(controller: ShardController, parts: Sequence[bulk.SegmentPayload]) -> bool:
    """Whether a message with these segments is processed soon: it is small, and waits for nothing.

    Lock-free pushes are concurrent on purpose.
    """
    shard = controller.shard
    if shard is None or shard.lock_free or shard.staleness is not None:
        return False
    return sum([nbytes_of(part, shard) for part in parts if part.index in shard.segments]) < MIN_BYTES_PER_THREAD


def nbytes_of(part: bulk.SegmentPayload, shard: Shard) -> int:
    """Bytes that a segment of a push concerns: of rows those that it brings."""
    segment = shard.segment(part.index)
    return 4 * part.length if segment.span.by_key else segment.nbytes


class UploadHandler(ABC):
    """Handler of one push or exchange.

    Parameters
    ----------
    wait
        See `Wait`.
    blocks
        Returns the connection's shared memory, which may hold its segments.
    message
        The `PushOpening`, encoded.

    Attributes
    ----------
    what
        Name of the operation in error messages.
    """

    what: ClassVar[str]

    def __init__(
        self, controller: ShardController, metrics: Metrics, wait: Wait, blocks: Blocks, message: bytes
    ) -> None:
        self.opening = bulk.parse(wire.PushOpening, message)
        self._controller, self._metrics, self._wait = controller, metrics, wait
        opening, area = self.opening, blocks().area
        self._area = area(opening.shared) if opening.HasField("shared") else None
        self._rows_area = area(opening.shared_rows) if opening.HasField("shared_rows") else None
        self._shard = controller.shard_for(self.opening.target)
        self._push = push_from_wire(self.opening)
        self._count = self.opening.segments
        self._received = self._shared = 0  # bytes, of messages and in shared memory

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether all segments counted by the opening have arrived."""

    @abstractmethod
    def answers(self, parts: list[bulk.SegmentPayload]) -> Iterator[Any]:
        """Apply the segments of one message, and yield the replies that are due now; see `WAITS`."""

    def end(self) -> Iterator[Any]:
        """Replies that are due if the stream ends before this upload is complete."""
        yield from ()

    def _numbers(self, part: bulk.SegmentPayload) -> np.ndarray:
        """Numbers of a segment: a view into shared memory, or decoded."""
        if not part.shared:
            if part.codec not in bulk.DTYPES:
                self._check_codec(part)
            if part.data is None and self._push.absent:
                return payloads.pushed_numbers(part, self._push, self._shard.segment(part.index).span)
            return payloads.numbers(part)
        span = self._shard.segment(part.index).span
        area = self._area if part.at < 0 else self._rows_area
        if area is None or (self._push.packed or span.by_key) != (part.at >= 0):
            raise Rejected(f"segment {part.index}: lies in shared memory, and the opening does not say where")
        if part.at >= 0:
            rows = area.part(part.index, part.at, part.length)
            return rows.copy() if self._push.packed else rows  # its positions are checked, and then used
        part.length = span.length  # always a complete segment
        return area.of(span)

    def _check_codec(self, part: bulk.SegmentPayload) -> None:
        """Check that rows of tables come by a codec of rows, and that it brings nothing else."""
        if self._push.packed:
            raise Rejected(f"segment {part.index}: packed numbers in codec {part.codec}; they are not encoded")
        by_key = self._shard.segment(part.index).span.by_key
        if by_key != row_payloads.is_encoded(part):
            what = "rows" if by_key else "numbers"
            raise Rejected(f"segment {part.index}: {what} in codec {part.codec}, which does not encode them")

    def _count_bytes(self, part: bulk.SegmentPayload) -> None:
        """Count the bytes that a segment arrived as."""
        if part.shared:
            self._shared += 4 * part.length
        elif part.data is not None:
            self._received += part.data.nbytes

    def _record_metrics(self) -> None:
        """Count this upload, and the bytes received with it, in the metrics."""
        self._metrics.pushes_total.labels(self._push.vector).inc()
        self._metrics.bytes_total.labels("received").inc(self._received)
        self._metrics.shared_bytes_total.labels("received").inc(self._shared)

    def check_incarnation(self) -> None:
        """Check that the shard is still in the incarnation that this upload is addressed to.

        Raises
        ------
        Moved
            It is not.
        """
        if self._controller.shard_for(self.opening.target) is not self._shard:
            raise Moved(f"was assigned its segments again in epoch {self._controller.epoch}")


def handle_stream(
    messages: Iterator[Received],
    kind: type[UploadHandler],
    begin: Callable[[bytes], UploadHandler],
    may_stay: Callable[[], bool],
    controller: ShardController,
) -> Iterator[Any]:
    """Process the uploads of one stream in order, until it ends or `may_stay()` is False after one of them."""
    under_way: UploadHandler | None = None
    joiner = bulk.PayloadJoiner()
    for message in messages:
        opening, parts = bulk.decode(message)
        if opening is not None:
            if under_way is not None:
                raise Rejected(f"{kind.what} was opened before the one before it was complete")
            under_way, joiner = begin(opening), bulk.PayloadJoiner()  # for this incarnation
        elif under_way is None:
            raise Rejected(f"{kind.what} begins with its opening")
        else:
            under_way.check_incarnation()
        parts = joiner.whole(parts)
        yield from _in_turn(controller, parts, under_way.answers(parts))
        if under_way.complete:
            under_way = None
            if not may_stay():
                return
    if under_way is not None:
        yield from under_way.end()
