"""Stream of pulls from a client: requests in, segments out, encoded in messages or written to shared memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from dbelief.codec import Codec
from dbelief.codec.bfloat16 import BFloat16
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import PARAMETERS
from dbelief.errors import Moved, Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk, payloads
from dbelief.sparse.table import MOST_KEYS
from dbelief.telemetry.metrics import Metrics

from ..controller import ShardController
from ..store.pulled_numbers import PulledNumbers
from .shared_memory import BlockView
from .upload import Blocks, Wait


class PullHandler:
    """Handler of one pull.

    Parameters
    ----------
    wait
        See `Wait`.
    blocks
        Returns the connection's shared memory, which the segments may be written to.
    """

    def __init__(
        self, controller: ShardController, metrics: Metrics, wait: Wait, blocks: Blocks, request: wire.PullRequest
    ) -> None:
        self._controller, self._metrics, self._wait, self._blocks = controller, metrics, wait, blocks
        self._request = request
        self._shard = controller.shard_for(self._request.target)
        indices: list[int] = list(request.segments)
        known: list[int | None] = list(request.if_newer_than)
        if known and len(known) != len(indices):
            raise Rejected(f"{len(known)} versions for {len(indices)} segments")
        bases: list[int] = list(request.bases)
        if bases and len(bases) != len(indices):
            raise Rejected(f"{len(bases)} versions in bf16 for {len(indices)} segments")
        self._rows = list(zip(indices, known or [None] * len(indices), strict=True))
        self._bases = dict(zip(indices, bases, strict=True)) if bases else {}
        self._shared = request.HasField("shared")
        if self._shared and request.rows and indices:
            raise Rejected("segments and rows in shared memory, which one reply does not list")
        self._area = blocks().area(request.shared) if self._shared and request.rows else None  # of rows
        self._wanted = [(row.segment, _keys(row, self._area)) for row in request.rows] if request.rows else []
        self._prepared: list[bytes] | Exception | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for a clock first."""
        return self._shard.pulls_wait and self._request.HasField("pusher")

    def prepare(self) -> None:
        """Write segments to shared memory now, before the push that this pull follows waits for the follower.

        After that wait the small pulls of several workers would not take turns. An error is raised by `answers`.
        """
        if self._shared and not self.waits:
            try:
                self._prepared = list(self._written())
            except Exception as error:
                self._prepared = error.with_traceback(None)  # whose frames hold this object, and the client's memory

    def answers(self, start: bytes = b"") -> Iterator[bytes]:
        """Wait for the requested clock, then yield the replies, the first of which begins with `start`; see `prepare`.

        Raises
        ------
        Moved
            The shard's incarnation has ended meanwhile, or its follower may have been promoted.
        """
        request, shard = self._request, self._shard
        if shard.staleness is not None and request.HasField("pusher"):
            indices = [index for rows in (self._rows, self._wanted) for index, _ in rows]
            shard.record_clock(indices, request.pusher.replica, request.clock)
            if self.waits:
                self._wait("pulls", shard, indices, request.clock)
                yield start  # no segments: the wait is over
                start = b""
        for message in self._listed(start) if self._shared else self._encoded(start):
            if self._controller.shard_for(request.target) is not shard:
                raise Moved(f"was assigned its segments again in epoch {self._controller.epoch}")
            self._controller.confirm_leads(shard)
            yield message

    def _encoded(self, start: bytes) -> Iterator[bytes]:
        """Segments encoded in messages, small ones combined."""
        combined = [start] if start else []
        filled = sent = 0
        for answer in self._segments():
            if filled and filled + len(answer) > bulk.FULL_BYTES:
                yield combined[0] if len(combined) == 1 else b"".join(combined)
                combined, filled = [], 0
            combined.append(answer)
            filled += len(answer)
            sent += len(answer)
        self._metrics.bytes_total.labels("sent").inc(sent)
        if self._rows or self._wanted:  # else the vector's existence is unverified
            self._metrics.pulls_total.labels(self._request.vector).inc()
        yield combined[0] if len(combined) == 1 else b"".join(combined)

    def _segments(self) -> Iterator[bytes]:
        """Each segment, and then each bucket's rows, encoded."""
        codec, vector = payloads.answering(self._request.codec), self._request.vector
        pulled = self._shard.pulled if self._bases and vector == PARAMETERS and isinstance(codec, BFloat16) else None
        for index, newer_than in self._rows:
            of_segment = payloads.codec_of(self._shard.segment(index).span, codec)
            if pulled is None or of_segment is None:
                form = functools.partial(_encode, index, of_segment)
            else:
                form = functools.partial(_encode_difference, index, pulled, self._bases[index])
            yield self._shard.read(vector, index, newer_than, form)
        for index, keys in self._wanted:
            version, rows = self._shard.read_rows(index, keys, vector)
            yield from map(bulk.encode, bulk.cut(payloads.part_of(index, version, rows.reshape(-1), codec)))

    def _listed(self, start: bytes) -> Iterator[bytes]:
        """Messages that list the segments in shared memory, the first of which begins with `start`."""
        if isinstance(self._prepared, Exception):
            raise self._prepared
        for message in self._written() if self._prepared is None else self._prepared:
            yield start + message
            start = b""

    def _written(self) -> Iterator[bytes]:
        """Write segments to shared memory, and yield the messages that list them."""
        if self._area is not None:
            yield from self._written_rows(self._area)
            return
        area, vector, rows = self._blocks().area(self._request.shared), self._request.vector, self._rows

        def write(row: tuple[int, int | None]) -> tuple[int, int]:
            index, newer_than = row
            form = functools.partial(_write, self._shard.segment(index).span, area)
            return self._shard.read(vector, index, newer_than, form)

        for first in range(0, max(1, len(rows)), bulk.FULL_SHARED):
            some = rows[first : first + bulk.FULL_SHARED]
            total = sum([self._shard.segment(index).nbytes for index, _ in some])
            done = self._controller.threads.map(write, some, total)
            self._metrics.shared_bytes_total.labels("sent").inc(sum([count for _, count in done]))
            if rows and first + len(some) == len(rows):
                self._metrics.pulls_total.labels(vector).inc()
            yield bulk.in_shared([index for index, _ in some], [version for version, _ in done])

    def _written_rows(self, area: BlockView) -> Iterator[bytes]:
        """Write rows to shared memory, and yield the messages that list their buckets."""
        request = self._request
        for first in range(0, len(self._wanted), bulk.FULL_SHARED):
            versions, sent = list[int](), 0
            some = self._wanted[first : first + bulk.FULL_SHARED]
            for (index, keys), row in zip(some, request.rows[first : first + len(some)], strict=True):
                into = functools.partial(area.part, index, row.rows_at)
                version, rows = self._shard.read_rows(index, keys, request.vector, into)
                versions.append(version)
                sent += rows.nbytes
            self._metrics.shared_bytes_total.labels("sent").inc(sent)
            if first + len(some) == len(self._wanted):
                self._metrics.pulls_total.labels(request.vector).inc()
            yield bulk.in_shared([index for index, _ in some], versions)


def _keys(row: wire.RowKeys, area: BlockView | None) -> np.ndarray:
    """(n,) int64 keys of a bucket's rows, or positions of numbers; `area`: where they are shared memory."""
    if area is not None:
        if row.count > MOST_KEYS:
            raise Rejected(f"segment {row.segment}: {row.count} keys of rows; at most {MOST_KEYS:,} keys")
        return area.part(row.segment, row.keys_at, 2 * row.count).view(np.int64)
    if len(row.keys) % 8 or len(row.keys) > 8 * MOST_KEYS:
        most = f"; at most {MOST_KEYS:,} keys" if len(row.keys) > 8 * MOST_KEYS else ""
        raise Rejected(f"segment {row.segment}: {len(row.keys)} bytes are no keys of rows{most}")
    return np.frombuffer(row.keys, np.int64)


def _encode(index: int, codec: Codec | None, version: int, values: np.ndarray | None) -> bytes:
    """Encode one segment of a reply, its numbers by a codec or as a plain copy."""
    if values is None:
        return bulk.encode(bulk.SegmentPayload(index, version, unchanged=True))
    return bulk.encode(payloads.part_of(index, version, values, codec))


def _encode_difference(index: int, pulled: PulledNumbers, named: int, version: int, values: np.ndarray | None) -> bytes:
    """Encode one segment of a reply in bf16, or as the difference from a version; `named` as `PullRequest.bases`."""
    if values is None:
        return _encode(index, None, version, None)
    payload, difference = pulled.answer(index, version, values, named - 1 if named else None)
    codec = segments.CODEC_BF16_DIFFERENCE if difference else segments.CODEC_BF16
    return bulk.encode(bulk.SegmentPayload(index, version, 0, len(values), codec, data=payload.data))


def _write(span: SegmentSpan, area: BlockView, version: int, values: np.ndarray | None) -> tuple[int, int]:
    """Write one segment to the client's shared memory; returns its version and the bytes written."""
    if values is None:
        return version, 0
    area.put(span, values)
    return version, values.nbytes
