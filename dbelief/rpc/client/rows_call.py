"""A pull of rows of tables from one shard, by key; or of numbers of a vector, by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement
from dbelief.core.push import PARAMETERS, Pusher
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import pusher_to_wire

from .shard_call import MOST_REQUESTED, ShardCall


@dataclass(frozen=True)
class WantedRows:
    """Rows of one bucket: (n,) int64 keys, and (n width,) float32 that receive their rows, in the order of the keys.

    Of another segment: positions within it, and (n,) float32 that receive the numbers there. Where both are in one
    array that shards may access, `keys_at` and `rows_at` are their first numbers in it.
    """

    keys: np.ndarray
    out: np.ndarray
    keys_at: int = 0
    rows_at: int = 0


class RowsCall(ShardCall):
    """A pull of rows from one shard, one bucket after the other; or of numbers of `vector`. Encoded by `codec`.

    `area`: array with all keys, and with room for all rows; None: there is none.
    """

    method = "Pull"

    def __init__(
        self,
        job: str,
        place: ShardPlacement,
        run: Sequence[SegmentSpan],
        wanted: Mapping[int, WantedRows],
        versions: np.ndarray,
        clock: int = 0,
        pusher: Pusher | None = None,
        codec: segments.Codec.ValueType = segments.CODEC_FP32,
        vector: str = PARAMETERS,
        area: np.ndarray | None = None,
    ) -> None:
        super().__init__(job, place, run)
        self._vector, self.arrays = vector, (area,)
        none = WantedRows(np.zeros(0, np.int64), np.zeros(0, np.float32))
        self._wanted = {span.index: wanted.get(span.index, none) for span in run}
        self._versions, self._clock, self._codec = versions, clock, codec
        self._joiner = bulk.PayloadJoiner()
        self._pusher = None if pusher is None else pusher_to_wire(pusher)

    @property
    def size(self) -> int:
        """Numbers of the rows that are not there yet."""
        return sum(self._wanted[span.index].out.size for span in self.run[self.done :])

    @property
    def has_rows(self) -> bool:
        """See `ShardCall`."""
        return self.arrays[0] is None

    @property
    def passed(self) -> int:
        """See `ShardCall`."""
        return self._clock

    def requests(self) -> Iterator[bytes]:
        """One request, for the remaining buckets; several where they have very many keys, or are very many."""
        self._joiner = bulk.PayloadJoiner()  # of this stream's answers
        left = [(span.index, self._wanted[span.index]) for span in self.run[self.done :]]
        if self._shared[0] is not None:
            for first in range(0, len(left), MOST_REQUESTED):
                yield self._request([_referred(index, one) for index, one in left[first : first + MOST_REQUESTED]])
            return
        rows, filled = list[wire.RowKeys](), 0
        for index, keys in ((index, one.keys) for index, one in left):
            if rows and filled + keys.nbytes > bulk.LONGEST_PAYLOAD:
                yield self._request(rows)
                rows, filled = [], 0
            rows.append(wire.RowKeys(segment=index, keys=keys.tobytes()))
            filled += keys.nbytes
        yield self._request(rows)

    def _request(self, rows: list[wire.RowKeys]) -> bytes:
        return wire.PullRequest(
            target=self.target,
            vector=self._vector,
            rows=rows,
            pusher=self._pusher,
            clock=self._clock,
            codec=self._codec,
            shared=self._shared[0],
        ).SerializeToString()

    def handle_reply(self, answer: object) -> None:
        """Store the received rows, and the versions of their buckets."""
        assert isinstance(answer, bytes | memoryview)
        _, parts = bulk.decode(answer)
        for part in self._joiner.whole(parts):
            span = self._next(part)
            out = self._wanted[span.index].out
            if part.shared:
                self._check_shared(part, self._shared[0])
                self.shared_received += out.nbytes
            else:
                self._fill(part, out)
            self._versions[span.index] = part.version
            self.done += 1


def _referred(index: int, wanted: WantedRows) -> wire.RowKeys:
    """Keys of a bucket in shared memory, and where their rows go there."""
    return wire.RowKeys(segment=index, count=wanted.keys.size, keys_at=wanted.keys_at, rows_at=wanted.rows_at)
