"""Calls that send numbers to a shard: pushes, and exchanges, which are answered with the numbers before them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from dbelief.arrays.push_source import PushSource
from dbelief.core.absent import FEW
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import EXCHANGE_COMBINED, EXCHANGE_WINDOW, Push, PushResult
from dbelief.errors import Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk, row_payloads
from dbelief.rpc.wire.convert import push_to_wire
from dbelief.rpc.wire.payloads import Payloads
from dbelief.sparse.table import SparseTable

from .row_areas import NO_ROWS, PushedRows
from .shard_call import FLOAT32_BYTES, PullCall, ShardCall

_NO_NUMBERS = np.zeros(0, np.float32)

Pushed = tuple[str, frozenset[int] | None]
"""What a push changes: a named vector, and which segments of it; None: all."""


@dataclass(frozen=True)
class VectorUpload:
    """What a push or exchange sends to all shards.

    Attributes
    ----------
    values
        Of the pushed range of the vector, which begins at its number `origin`.
    versions
        See `Parameters.push`.
    answers
        Codec of an exchange's replies.
    within
        See `Parameters.push`.
    rows
        Packed rows of tables by bucket; of a packed push by segment. Those that are not named get none. Not of an
        exchange.
    tables
        See `Codecs`.
    """

    values: np.ndarray | PushSource
    versions: np.ndarray
    push: Push
    rule: segments.Rule
    origin: int
    answers: segments.Codec.ValueType = segments.CODEC_FP32
    within: frozenset[int] | None = None
    rows: PushedRows = NO_ROWS
    tables: Mapping[int, SparseTable] = field(default_factory=dict)


class PushCall(ShardCall):
    """A push to one shard.

    `staleness` and `duplicates` are sums over the acknowledged segments; `lost` and `clock` are maxima. `pull` is a
    pull from the same shard, whose request is sent with the push, and whose replies follow; None: there is none.
    """

    method = "Push"

    def __init__(
        self, job: str, place: ShardPlacement, run: Sequence[SegmentSpan], upload: VectorUpload, payloads: Payloads
    ) -> None:
        super().__init__(job, place, run)
        self.push, self._upload, self._payloads, self._versions = upload.push, upload, payloads, upload.versions
        values = upload.values if payloads.as_they_are and not self.push.packed else None
        self.arrays = (values,) if upload.rows.area is None else (values, upload.rows.area)
        self._first = 0  # segments that were done when the current stream began
        self.staleness = self.duplicates = self.lost = self.clock = 0

    @property
    def what(self) -> Pushed:
        """What it changes: pushes of the same segments, and no others, have the same."""
        return self.push.vector, self._upload.within

    @property
    def passed(self) -> int:
        """See `ShardCall`; initial values and bundles have no clock of a replica."""
        return 0 if self.push.assign or self.push.bundle is not None else self.push.clock + 1

    @property
    def fits_a_packet(self) -> bool:
        """See `ShardCall`."""
        return len(self.push.absent) <= FEW

    def requests(self) -> Iterator[bytes]:
        """The opening, and all remaining segments; small ones share a message."""
        left = self.run[self.done :]
        pieces: list[bytes | memoryview] = [bulk.head(self._opening(len(left)).SerializeToString())]
        packed = self._packed(left)
        dense = left[: len(left) - len(packed)]
        messages: Iterator[Sequence[bytes | memoryview]] = iter(())
        if dense:
            messages = self._encoded(dense) if self._shared[0] is None else self._referred(dense)
        if packed:
            rows = self._row_messages(packed) if self._shared_rows is None else self._referred_rows(packed)
            messages = itertools.chain(messages, rows)
            if self.holds_no_numbers and len(left) <= bulk.FULL_SHARED:  # references are short: one message of them
                messages = iter([list(itertools.chain(*messages))])
        for further in messages:
            yield b"".join([*pieces, *further])
            pieces = []

    def _packed(self, run: Sequence[SegmentSpan]) -> Sequence[SegmentSpan]:
        """Segments of a run that get packed rows: all, or the buckets, which are behind all others."""
        if self.push.packed:
            return run
        return [span for span in run if span.by_key] if run[-1].by_key else []

    @property
    def _shared_rows(self) -> segments.SharedArray | None:
        return None if self._upload.rows.area is None else self._shared[1]

    @property
    def holds_no_numbers(self) -> bool:
        """See `ShardCall`."""
        if self._upload.rows.area is None:
            return super().holds_no_numbers and not self.has_rows
        rows, dense = self.push.packed or self.run[-1].by_key, not (self.push.packed or self.run[0].by_key)
        return not (rows and self._shared[1] is None) and not (dense and self._shared[0] is None)

    @property
    def has_rows(self) -> bool:
        """See `ShardCall`."""
        return self.run[-1].by_key and self._upload.rows.area is None

    @property
    def size(self) -> int:
        """See `ShardCall`."""
        held = self._upload.rows.packed
        rows = sum([held[span.index].size for span in self.run[self.done :] if span.index in held]) if held else 0
        return rows if self.push.packed else super().size + rows

    def together(self) -> Sequence[ShardCall]:
        """See `ShardCall`."""
        return (self,) if self.pull is None else (self, self.pull)

    def _opening(self, count: int) -> wire.PushOpening:
        opening = push_to_wire(self.push, self.target, self._upload.rule, count, self._upload.answers)
        if self._shared[0] is not None:
            opening.shared.CopyFrom(self._shared[0])
        if (rows := self._shared_rows) is not None:
            opening.shared_rows.CopyFrom(rows)
        if self.pull is not None:
            (request,) = self.pull.openings()
            opening.pull.CopyFrom(request)
        return opening

    def _encoded(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes | memoryview]]:
        """Encoded segments of each message, as pieces; ends where the push was aborted meanwhile."""
        groups = list(_adjacent(left, bulk.FULL_BYTES))
        origin, values = self._upload.origin, self._upload.values
        ranges = [(group[0].start - origin, group[-1].stop - origin) for group in groups]
        # a source copies or draws each block here, in this shard's stream
        blocks = (values[a:b] for a, b in ranges) if isinstance(values, np.ndarray) else values.blocks(ranges)
        for group, block in zip(groups, blocks, strict=True):
            pieces: list[bytes | memoryview] = []
            for span in group:
                numbers = block[span.start - group[0].start : span.stop - group[0].start]
                part = self._payloads.part(span, max(0, int(self._versions[span.index])), numbers)
                if part is None:
                    return
                self.sent += len(part.data or b"")
                pieces += bulk.pieces(part)
            yield pieces

    def _row_messages(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes | memoryview]]:
        """Packed rows of each bucket, or numbers of each segment, or none; small ones share a message."""
        pieces: list[bytes | memoryview] = []
        filled = 0
        tables = self._upload.tables
        for span in left:
            rows = self._upload.rows.packed.get(span.index, _NO_NUMBERS)
            version = max(0, int(self._versions[span.index]))
            whole = row_payloads.part_of(span.index, version, rows, tables.get(span.index), self.push)
            for part in bulk.cut(whole):
                size = len(part.data or b"")
                if pieces and filled + size > bulk.FULL_BYTES:
                    yield pieces
                    pieces, filled = [], 0
                pieces += bulk.pieces(part)
                filled += size
                self.sent += size
        if pieces:
            yield pieces

    def _referred(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes]]:
        """Messages that refer to segments in shared memory."""
        for group in self._shared_groups(left):
            indices = [span.index for span in group]
            self.shared_sent += FLOAT32_BYTES * sum([span.length for span in group])
            yield [bulk.in_shared(indices, [max(0, version) for version in self._versions[indices].tolist()])]

    def _referred_rows(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes]]:
        """Messages that refer to packed rows in shared memory."""
        held, starts = self._upload.rows.packed, self._upload.rows.starts
        for first in range(0, len(left), bulk.FULL_SHARED):
            indices = [span.index for span in left[first : first + bulk.FULL_SHARED]]
            lengths = [held[index].size if index in held else 0 for index in indices]
            versions = [max(0, version) for version in self._versions[indices].tolist()]
            self.shared_sent += FLOAT32_BYTES * sum(lengths)
            places = (starts.get(index, 0) for index in indices)
            yield [bulk.rows_in_shared(zip(indices, versions, places, lengths, strict=True))]

    def _shared_groups(self, left: Sequence[SegmentSpan]) -> Iterator[Sequence[SegmentSpan]]:
        return (left[first : first + bulk.FULL_SHARED] for first in range(0, len(left), bulk.FULL_SHARED))

    def abort(self) -> None:
        """Abort the push: what its unacknowledged payloads hold returns to the residual."""
        self._payloads.restore_residual(self.run[self.done :])

    def begin(self, base: int | None) -> None:
        """Start sending with this base; replies count from here."""
        if base != self.push.base:
            self.push = dataclasses.replace(self.push, base=base)
        self._first = self.done

    def handle_reply(self, answer: object) -> None:
        """Add up the figures of a reply; the last one may have the first segments of the pull."""
        assert isinstance(answer, bytes | memoryview)
        acknowledgement, parts = bulk.decode(answer)
        if acknowledgement is None:
            raise Rejected(f"{self.where}: answered without an acknowledgement")
        reply = bulk.parse(wire.PushAcknowledgement, acknowledgement)
        self.done = self._first + reply.acknowledged
        self.staleness += reply.staleness
        self.duplicates += reply.duplicates
        self.lost, self.clock = max(self.lost, reply.lost), max(self.clock, reply.clock)
        if parts:
            if self.pull is None or self.done < len(self.run):
                raise Rejected(f"{self.where}: answered with segments that were not requested")
            self.pull.store(parts)

    def forget(self) -> None:
        """See `ShardCall`."""
        super().forget()
        self.staleness = self.duplicates = self.lost = self.clock = 0

    def continued_at(self, placement: Placement) -> list[Self]:
        """See `ShardCall`; the pull of the segments at the earlier place has a stream of its own later."""
        self.pull = None
        return super().continued_at(placement)


class ExchangeCall(PushCall):
    """An exchange with one shard: a push whose replies are the previous values, written into `out`.

    Replies are encoded by `answers`.
    """

    method = "Exchange"
    repeats = False  # shards keep the replies to the last messages only

    def __init__(
        self,
        job: str,
        place: ShardPlacement,
        run: Sequence[SegmentSpan],
        upload: VectorUpload,
        payloads: Payloads,
        out: np.ndarray,
    ) -> None:
        super().__init__(job, place, run, upload, payloads)
        self._out = out
        self.arrays = (*self.arrays, out if upload.answers == segments.CODEC_FP32 else None)

    @property
    def window(self) -> int:
        """See `ShardCall`."""
        return EXCHANGE_WINDOW // self._combined

    @property
    def _combined(self) -> int:
        return EXCHANGE_COMBINED if self.holds_no_numbers else 1

    def _opening(self, count: int) -> wire.PushOpening:
        opening = super()._opening(count)
        if self._shared[1] is not None:
            opening.shared_answers.CopyFrom(self._shared[1])
        return opening

    def _shared_groups(self, left: Sequence[SegmentSpan]) -> Iterator[Sequence[SegmentSpan]]:
        groups = list(_adjacent(left, bulk.FULL_BYTES))  # a shard caches the reply to each
        for first in range(0, len(groups), self._combined):
            yield [span for group in groups[first : first + self._combined] for span in group]

    def handle_reply(self, answer: object) -> None:
        """Store the previous centre in `out`."""
        assert isinstance(answer, bytes | memoryview)
        _, parts = bulk.decode(answer)
        if not parts:
            self.lost = max(self.lost, bulk.parse(wire.ExchangeReply, answer).lost)
            return
        for part in parts:
            span = self._next(part)
            out = self._out[span.start - self._upload.origin : span.stop - self._upload.origin]
            if part.shared:
                self._check_shared(part, self._shared[1])
                self.shared_received += out.nbytes
            else:
                self._fill(part, out)
            self.staleness += max(0, part.version - max(0, int(self._versions[span.index])))
            self._versions[span.index] = part.version + 1
            self.done += 1
        assert self.stream is not None
        self.stream.credit()


def _adjacent(run: Sequence[SegmentSpan], full_bytes: int) -> Iterator[Sequence[SegmentSpan]]:
    """Split a run into groups that share a message: adjacent segments, up to its size limit."""
    first = 0
    for number, span in enumerate(run):
        full = 4 * (span.stop - run[first].start) > full_bytes
        if number > first and (full or span.start != run[number - 1].stop):
            yield run[first:number]
            first = number
    yield run[first:]


def result_of(shard_calls: Sequence[ShardCall]) -> PushResult:
    """Result of a push or exchange over all shards; its staleness is a mean over the segments applied."""
    applied = duplicates = staleness = lost = clock = 0
    for call in shard_calls:
        if call.method != PullCall.method and isinstance(call, PushCall):
            applied += len(call.run) - call.duplicates
            duplicates, staleness = duplicates + call.duplicates, staleness + call.staleness
            lost, clock = max(lost, call.lost), max(clock, call.clock)
    return PushResult(staleness / max(1, applied), duplicates, lost, clock)
