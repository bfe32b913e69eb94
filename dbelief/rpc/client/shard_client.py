"""Client of the shards: pull and push of the complete vector or one rank's range of it, all shards concurrently.

Cost of a pull or push of N numbers in S segments on K shards: 4N bytes in at most S messages, K where segments are
small; one copy of the array into messages on push, one out of them on pull. A codec sends fewer bytes; a codec with a
residual costs N float32 more, and, during a push, the encoded payloads. Streams are reused from call to call. Those of
all shards run concurrently; replies are read in rotation.

Streams, retries and shared memory: `shard_calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from dbelief.arrays.push_source import PushSource
from dbelief.arrays.vector_kernels import compiled
from dbelief.core.absent import FEW
from dbelief.core.layout import Range, SegmentSpan
from dbelief.core.placement import Fetch, Placement, ShardPlacement
from dbelief.core.push import PARAMETERS, Push, Pusher, PushResult
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.pb.coordination_pb2 import WireFigures
from dbelief.rpc.wire.payloads import AS_THEY_ARE, NUMBERS, Codecs, Payloads
from dbelief.sparse.table import SparseTable, pack

from .received_numbers import ReceivedNumbers
from .row_areas import MOST_HELD, PushedRows, RowAreas, even
from .rows_call import RowsCall, WantedRows
from .shard_call import PullCall, ShardCall
from .shard_calls import ShardCalls
from .sorted_rows import SortedRows, arrays_in, wanted_in
from .upload_call import ExchangeCall, PushCall, VectorUpload, result_of

_NO_NUMBERS = np.zeros(0, np.float32)
_READ_AT_ONCE = 2
"""Segments that `each_segment` holds at a time: more is not faster."""


class ShardedParameterClient(ShardCalls):
    """`Parameters` over gRPC. Pulls and pushes may come from different threads.

    Parameters
    ----------
    job
        The job's id.
    placement
        Shard of each segment; updated by `refresh`.
    rule
        Name and options of the job's rule, sent with every push.
    pusher
        Identity for pulls and pushes; None for a reader.
    deadline_s, refresh, shares_memory, direct
        See `ShardCalls`.
    part
        One rank's range of the vector that pulls and pushes cover: arrays have its length, and shards without segments
        in it are not contacted. None: the complete vector.
    codecs
        Encoding of float32. Assignments and exact pulls are not encoded.
    """

    def __init__(
        self,
        job: str,
        placement: Placement,
        rule: tuple[str, dict[str, float]] = ("assign", {}),
        pusher: Pusher | None = None,
        deadline_s: float = 60.0,
        refresh: Callable[[], Placement] | None = None,
        part: Range | None = None,
        shares_memory: bool = True,
        codecs: Codecs = AS_THEY_ARE,
        direct: bool = True,
    ) -> None:
        super().__init__(job, placement, pusher, deadline_s, refresh, shares_memory, direct)
        self._codecs, self._fetched = codecs, ReceivedNumbers() if codecs.differences else None
        self._residuals: dict[str, np.ndarray] = {}  # by vector: residual of its pushes
        self._areas = RowAreas(self._sharing.array)
        self._rule = segments.Rule(name=rule[0], options=rule[1])
        self.cover(part)

    def cover(self, part: Range | None) -> None:
        """Set the range that pulls and pushes cover: see `part`; no call is under way."""
        self._part, self._origin = part, part[0] if part is not None else 0
        self._known: tuple[Placement | None, list[tuple[ShardPlacement, Sequence[SegmentSpan]]]] = None, []

    def figures(self) -> WireFigures:
        """Traffic so far, and the 1-norm of the residuals, in a pass over each; only while no push is running."""
        residual = sum(float(compiled("norm1")(kept)) for kept in self._residuals.values())
        shared = {"shared_sent": self.shared_sent, "shared_received": self.shared_received}
        return WireFigures(sent=self.sent, received=self.received, residual=residual, **shared)

    def pull(
        self, out: np.ndarray, versions: np.ndarray, *, vector: str = PARAMETERS, clock: int = 0, exact: bool = False
    ) -> float:
        """See `Parameters.pull`; `exact`: without a codec.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        """
        codec = segments.CODEC_FP32 if exact else self._codecs.asked
        how = self._pusher, self._origin, codec, None if exact or vector != PARAMETERS else self._fetched
        calls: list[ShardCall] = [
            PullCall(self.job, place, run, out, versions, vector, clock, *how) for place, run in self._runs()
        ]
        self._run(calls)
        return max((call.waited_s for call in calls if isinstance(call, PullCall)), default=0.0)

    def pull_rows(
        self, wanted: Mapping[SparseTable, np.ndarray], versions: np.ndarray, clock: int = 0
    ) -> list[np.ndarray]:
        """Read rows of tables by key, from all shards concurrently; initial ones of keys that have none.

        Parameters
        ----------
        wanted
            Of each table (n,) int64 keys, each once, in any order.
        versions
            (segments,) int64: those of the buckets that are read are overwritten.
        clock
            See `Parameters.pull`.

        Returns
        -------
        list
            (n, width) float32 of each table, in the order of its keys.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        UserError
            A bucket has more than `MOST_KEYS` of the keys; names the table.
        """
        plain = [table for table in wanted if self._asked(table) == segments.CODEC_FP32]
        size = sum(even((2 + table.width) * wanted[table].size) for table in plain)
        with self._room(size) as area:
            found, at = list[SortedRows](), 0
            by_codec: dict[segments.Codec.ValueType, dict[int, WantedRows]] = {}
            for table, keys in wanted.items():
                room = area[at:] if area is not None and table in plain else None
                found.append(one := SortedRows(table, keys, room, at))
                by_codec.setdefault(self._asked(table), {}).update(one.wanted)
                at += 0 if room is None else even((2 + table.width) * keys.size)
            calls: list[ShardCall] = []
            for codec, buckets in by_codec.items():
                # Of a clock all buckets are named: a restored one waits until each replica has reported its clocks.
                places = self.placement.places if clock else ()
                runs = [(place, self.placement.buckets(place)) for place in places] or self.placement.split(
                    within=frozenset(buckets)
                )
                how = buckets, versions, clock, self._pusher, codec, PARAMETERS
                room = area if codec == segments.CODEC_FP32 else None
                calls += [RowsCall(self.job, place, run, *how, room) for place, run in runs if run]
            self._run(calls)
            return [one.as_given() for one in found]

    def _room(self, size: int) -> AbstractContextManager[np.ndarray | None]:
        """An array of so many numbers that shards may access; None where none of them does, or they are very many."""
        return self._areas.taken(size) if self._shares(size) else nullcontext()

    def close(self) -> None:
        """See `ShardCalls.close`."""
        super().close()
        self._areas.close()

    def _shares(self, size: int) -> bool:
        """Whether so many numbers of rows lie in an array that shards may access."""
        return 0 < size <= MOST_HELD and self._sharing.expects(self.placement.places)

    def _asked(self, table: SparseTable) -> segments.Codec.ValueType:
        """Codec number for pulls of a table's rows."""
        return self._codecs.asked if table.pull is None else NUMBERS.get(table.pull, segments.CODEC_FP32)

    def pull_at(self, positions: np.ndarray, vector: str = PARAMETERS) -> np.ndarray:
        """Read numbers of a named vector: (n,) float32 at (n,) int64 rising positions of the flat vector.

        Cost: 12 bytes a number, and one request for each shard that has some. Each segment is consistent.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        """
        parts = [(span, own) for span, own in self._segments_of(positions) if own.start < own.stop]
        with self._room(3 * positions.size) as area:
            keys, out = arrays_in(area, positions.size, 1)
            for span, own in parts:
                np.subtract(positions[own], span.start, out=keys[own])
            wanted = wanted_in([(span.index, own) for span, own in parts], keys, out, 0)
            how = wanted, np.empty(len(self.placement.spans), np.int64), 0, self._pusher, segments.CODEC_FP32, vector
            runs = self.placement.split(within=frozenset(wanted))
            self._run([RowsCall(self.job, place, run, *how, area) for place, run in runs])
            return out.reshape(-1) if area is None else out.flatten()

    def push_at(self, positions: np.ndarray, values: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        """Send a packed bundle: (n,) float32 values at (n,) int64 rising positions of the flat vector, else 0.

        Every segment acknowledges it. Cost: 12 bytes a number, and some bytes a segment.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        """
        parts = [(span, own) for span, own in self._segments_of(positions) if own.start < own.stop]
        packed = {span.index: pack(positions[own] - span.start, values[own]) for span, own in parts}
        with self._held(packed, _NO_NUMBERS, push, None) as rows:
            upload = VectorUpload(_NO_NUMBERS, versions, push, self._rule, self._origin, rows=rows)
            calls: list[ShardCall] = [
                PushCall(self.job, place, run, upload, self._payloads(push)) for place, run in self._runs()
            ]
            self._run(calls)
        return result_of(calls)

    def _held(
        self, packed: Mapping[int, np.ndarray], values: np.ndarray | PushSource, push: Push, fetch: Fetch | None
    ) -> AbstractContextManager[PushedRows]:
        """Packed rows, in an array that shards may access where they may access all numbers of the call.

        Else all of them travel in messages: what a call names in memory keeps it from direct streams.
        """
        codecs, dense = self._codecs, not isinstance(values, np.ndarray) or values.size > 0
        encoded = dense and codecs.push is not None and not push.assign
        fetched = fetch is not None and codecs.pull is not None
        by_table = any(index in codecs.tables for index in packed)
        here = not dense or (isinstance(values, np.ndarray) and self._sharing.find(values) is not None)
        if encoded or fetched or by_table or not here or len(push.absent) > FEW:
            return nullcontext(PushedRows(packed))
        shared = self._shares(sum(even(rows.size) for rows in packed.values()))
        return self._areas.holding(packed) if shared else nullcontext(PushedRows(packed))

    def _segments_of(self, positions: np.ndarray) -> Iterator[tuple[SegmentSpan, slice]]:
        """Each segment, and the slice of rising positions that lie in it."""
        spans = self.placement.spans[: self.placement.dense]
        edges = np.searchsorted(positions, [span.start for span in spans]).tolist()
        return ((span, slice(a, b)) for span, a, b in zip(spans, edges, [*edges[1:], positions.size], strict=True))

    def each_segment(self, vector: str = PARAMETERS) -> Iterator[tuple[SegmentSpan, np.ndarray]]:
        """Read a named vector by segments: each segment with its (length,) float32, valid until the next iteration."""
        placement = self.placement
        versions = np.empty(len(placement.spans), np.int64)
        for place in placement.places:
            run = placement.run(place)
            for first in range(0, len(run), _READ_AT_ONCE):
                some = run[first : first + _READ_AT_ONCE]
                origin = some[0].start
                out = np.empty(some[-1].stop - origin, np.float32)
                versions[:] = -1
                self._run([PullCall(self.job, place, some, out, versions, vector, origin=origin)])
                for span in some:
                    yield span, out[span.start - origin : span.stop - origin]

    def push(
        self,
        values: np.ndarray | PushSource,
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None = None,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        within: frozenset[int] | None = None,
        rows: Mapping[int, np.ndarray] | None = None,
    ) -> PushResult:
        """See `Parameters.push`; `values` may also be a source, which is read as messages are made, again on retries.

        `rows`: by bucket, packed rows of tables (`dbelief.sparse.table`), in messages of the same push; buckets that
        are not named get none. None: a push that buckets do not count. `meanwhile` is called once, while the shards
        apply the push: for work that needs none of these arrays.
        Cost of `fetch`: a shard's segments are in the replies to its push. Where its stream broke or segments moved,
        they are pulled after all pushes. Where the fetch fails, the push may have been acknowledged.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        ValueError
            The gradient and the array for the parameters overlap.
        """
        if fetch is not None and isinstance(values, np.ndarray) and np.may_share_memory(values, fetch.out):
            raise ValueError("the gradient and the array for the parameters overlap")
        with self._held(rows or {}, values, push, fetch) as held:
            how = values, versions, push, self._rule, self._origin
            upload = VectorUpload(*how, within=within, rows=held, tables=self._codecs.tables)
            return self._send(upload, rows is not None, fetch, meanwhile)

    def _send(
        self, upload: VectorUpload, tables: bool, fetch: Fetch | None, meanwhile: Callable[[], None]
    ) -> PushResult:
        """Run the calls of a push; `tables`: buckets count it."""
        push = upload.push
        calls, pulls = list[ShardCall](), list[ShardCall]()
        for place, run, buckets in self._pushed_runs(upload.within, tables):
            call = PushCall(self.job, place, [*run, *buckets] if buckets else run, upload, self._payloads(push))
            calls.append(call)
            if fetch is not None and run:
                into = fetch.out, fetch.versions, PARAMETERS, fetch.clock, self._pusher, self._origin
                pull = PullCall(self.job, place, run, *into, self._codecs.asked, self._fetched)
                call.pull = pull if pull.is_one_request else None
                pulls.append(pull)
        try:
            self._run(calls, meanwhile)
        except BaseException:
            for one in calls:
                if isinstance(one, PushCall):
                    one.abort()
            raise
        if left := [pull for pull in pulls if pull.done < len(pull.run)]:
            # Not where they were: a shard that was replaced may still answer there, without this push.
            self._run([one for pull in left for one in pull.calls_in(self.placement)])
        return result_of(calls)

    def exchange(
        self, values: np.ndarray | PushSource, out: np.ndarray, versions: np.ndarray, push: Push
    ) -> PushResult:
        """Send a worker's own weights, and receive "w" as it was before the rule moved it towards them.

        Parameters
        ----------
        values, out
            (N,) float32, or of the length of a rank's range; they do not overlap. Until all replies have arrived, a
            shard of this host repeats a reply from `out`.
        versions
            (segments,) int64: those stored by this pusher's last pull or exchange; overwritten.

        Returns
        -------
        PushResult
            Its staleness: exchanges of other pushers since this pusher's previous one, a mean over the segments.

        Raises
        ------
        Unavailable, Rejected
            Naming the shard.
        ValueError
            The arrays overlap.
        """
        if isinstance(values, np.ndarray) and np.may_share_memory(values, out):
            raise ValueError("the weights that are sent and the array for the centre overlap")
        upload = VectorUpload(values, versions, push, self._rule, self._origin, self._codecs.asked)
        sent = upload, self._payloads(push), out
        calls: list[ShardCall] = [ExchangeCall(self.job, place, run, *sent) for place, run in self._runs()]
        self._run(calls)
        return result_of(calls)

    def _runs(self, within: frozenset[int] | None = None) -> list[tuple[ShardPlacement, Sequence[SegmentSpan]]]:
        """Shards that hold segments in this client's range, each with those segments; or with those of `within`."""
        if within is not None:
            return self.placement.split(within=within)
        if self._known[0] is not self.placement:
            self._known = self.placement, self.placement.split(self._part)
        return self._known[1]

    def _pushed_runs(
        self, within: frozenset[int] | None, tables: bool
    ) -> Iterable[tuple[ShardPlacement, Sequence[SegmentSpan], Sequence[SegmentSpan]]]:
        """As `_runs`, each with the shard's buckets where `tables`; and the shards that hold buckets only."""
        if not tables:
            return ((place, run, ()) for place, run in self._runs(within))
        runs = {place.shard: run for place, run in self._runs(within)}
        both = ((place, runs.get(place.shard, ()), self.placement.buckets(place)) for place in self.placement.places)
        return (row for row in both if row[1] or row[2])

    def _payloads(self, push: Push) -> Payloads:
        """Payload encoder of a push, with the residual of its vector where the codec keeps one."""
        codec = None if push.assign else self._codecs.push
        if codec is None or not codec.keeps:
            return Payloads(codec, absent=push.absent)
        if push.vector not in self._residuals:
            first, stop = self._part or (0, self.placement.size)
            self._residuals[push.vector] = np.zeros(stop - first, np.float32)
        return Payloads(codec, self._residuals[push.vector], self._origin, self._codecs.starts, push.absent)
