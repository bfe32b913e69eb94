"""State of one push or exchange at one shard: its messages, and the handling of the replies."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from dbelief.arrays.push_source import Source
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement
from dbelief.core.push import EXCHANGE_WINDOW, Push
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import push_to_wire
from dbelief.rpc.wire.payloads import Payloads

from .shard_call import ShardCall

_FLOAT32_BYTES = 4
_LOOK_S = 0.5
"""Interval at which a waiting sender checks whether its stream is still in use."""


class PushCall(ShardCall):
    """A push to one shard, from a source that begins at number `origin` of the vector, encoded by `payloads`.

    `staleness` and `duplicates` are sums over the acknowledged segments; `lost` is a maximum.
    """

    method = "Push"

    def __init__(
        self,
        job: str,
        place: ShardPlacement,
        run: Sequence[SegmentSpan],
        source: Source,
        versions: np.ndarray,
        push: Push,
        rule: segments.Rule,
        payloads: Payloads,
        origin: int = 0,
        answers: segments.Codec.ValueType = segments.CODEC_FP32,
    ) -> None:
        super().__init__(job, place, run)
        self.push = push
        self._source, self._versions, self._rule, self._origin = source, versions, rule, origin
        self._payloads, self._answers = payloads, answers
        self._first = 0  # segments that were done when the current stream began
        self.staleness = self.duplicates = self.lost = 0

    def requests(self) -> Iterator[bytes]:
        """The opening, and all remaining segments; small ones share a message."""
        left = self.run[self.done :]
        pieces: list[bytes | memoryview] = [bulk.opening(self._opening(len(left)).SerializeToString())]
        for further in self._written(left) if self._shared[0] is None else self._told(left):
            if not self.may_send():
                return
            yield b"".join([*pieces, *further])
            pieces = []

    def _opening(self, count: int) -> wire.PushOpening:
        opening = push_to_wire(self.push, self.target, self._rule, count, self._answers)
        if self._shared[0] is not None:
            opening.shared.CopyFrom(self._shared[0])
        return opening

    def _written(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes | memoryview]]:
        """Encoded segments of each message, as pieces; ends where the push was aborted meanwhile."""
        groups = list(_together(left, bulk.FULL_BYTES))
        origin = self._origin
        blocks = self._source.blocks([(group[0].start - origin, group[-1].stop - origin) for group in groups])
        for group, block in zip(groups, blocks, strict=True):
            pieces: list[bytes | memoryview] = []
            for span in group:
                values = block[span.start - group[0].start : span.stop - group[0].start]
                part = self._payloads.part(span, max(0, int(self._versions[span.index])), values)
                if part is None:
                    return
                self.sent += len(part.data or b"")
                pieces += bulk.pieces(part)
            yield pieces

    def _told(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes]]:
        """Messages that refer to segments in shared memory."""
        for group in self._told_together(left):
            indices = [span.index for span in group]
            self.shared_sent += _FLOAT32_BYTES * sum(span.length for span in group)
            yield [bulk.in_shared(indices, np.maximum(self._versions[indices], 0).tolist())]

    def _told_together(self, left: Sequence[SegmentSpan]) -> Iterator[Sequence[SegmentSpan]]:
        return (left[first : first + bulk.FULL_SHARED] for first in range(0, len(left), bulk.FULL_SHARED))

    def may_send(self) -> bool:
        """Whether the next message may be sent; False where this call was cancelled meanwhile."""
        return True

    def give_back(self) -> None:
        """Abort the push: what its unacknowledged payloads hold returns to the residual."""
        self._payloads.give_back(self.run[self.done :])

    def begin(self, base: int | None) -> None:
        """Start sending with this base; replies count from here."""
        self.push = dataclasses.replace(self.push, base=base)
        self._first = self.done

    def take(self, answer: object) -> None:
        """Add up the figures of a reply."""
        assert isinstance(answer, wire.PushReply)
        self.done = self._first + answer.acknowledged
        self.staleness += answer.staleness
        self.duplicates += answer.duplicates
        self.lost = max(self.lost, answer.lost)

    def forget(self) -> None:
        """See `ShardCall`."""
        super().forget()
        self.staleness = self.duplicates = self.lost = 0


class ExchangeCall(PushCall):
    """An exchange with one shard: a push whose replies are the previous values, written into `out`.

    Replies are encoded by `answers`. At most `EXCHANGE_WINDOW` messages are unanswered at a time.
    """

    method = "Exchange"
    repeats = False  # shards keep the replies to the last messages only

    def __init__(
        self,
        job: str,
        place: ShardPlacement,
        run: Sequence[SegmentSpan],
        source: Source,
        out: np.ndarray,
        versions: np.ndarray,
        push: Push,
        rule: segments.Rule,
        payloads: Payloads,
        origin: int = 0,
        answers: segments.Codec.ValueType = segments.CODEC_FP32,
    ) -> None:
        super().__init__(job, place, run, source, versions, push, rule, payloads, origin, answers)
        self._out = out
        self._ahead = threading.Semaphore(EXCHANGE_WINDOW)

    def _opening(self, count: int) -> wire.PushOpening:
        opening = super()._opening(count)
        if self._shared[1] is not None:
            opening.shared_answers.CopyFrom(self._shared[1])
        return opening

    def _told_together(self, left: Sequence[SegmentSpan]) -> Iterator[Sequence[SegmentSpan]]:
        return _together(left, bulk.FULL_BYTES)  # a shard caches the reply to each

    def requests(self) -> Iterator[bytes]:
        """See `PushCall`; an earlier attempt waits on its own semaphore, and ends."""
        self._ahead = threading.Semaphore(EXCHANGE_WINDOW)
        return super().requests()

    def may_send(self) -> bool:
        """Wait until fewer than `EXCHANGE_WINDOW` messages are unanswered."""
        ahead = self._ahead
        while not ahead.acquire(timeout=_LOOK_S):
            if self.stream is None or self._ahead is not ahead:
                return False
        return True

    def take(self, answer: object) -> None:
        """Store the previous centre in `out`."""
        assert isinstance(answer, bytes)
        _, parts = bulk.decode(answer)
        if not parts:
            self.lost = max(self.lost, bulk.parse(wire.ExchangeReply, answer).lost)
            return
        for part in parts:
            span = self._next(part)
            out = self._out[span.start - self._origin : span.stop - self._origin]
            self._fill(part, out, self._shared[1])
            self.shared_received += out.nbytes * part.shared
            self.staleness += max(0, part.version - max(0, int(self._versions[span.index])))
            self._versions[span.index] = part.version + 1
            self.done += 1
        self._ahead.release()


def _together(run: Sequence[SegmentSpan], full_bytes: int) -> Iterator[Sequence[SegmentSpan]]:
    """Split a run into groups that share a message: adjacent segments, up to its size limit."""
    first = 0
    for number, span in enumerate(run):
        full = 4 * (span.stop - run[first].start) > full_bytes
        if number > first and (full or span.start != run[number - 1].stop):
            yield run[first:number]
            first = number
    yield run[first:]
