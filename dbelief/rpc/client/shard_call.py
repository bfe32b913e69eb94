"""State of one pull, push or exchange at one shard: its requests, and the handling of its replies.

A call records its progress, so that it can resume in another stream: `requests` covers only what remains.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dbelief.arrays.push_source import DeviceSource
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import EXCHANGE_WINDOW, PARAMETERS, Push, Pusher
from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import push_to_wire, pusher_to_wire
from dbelief.rpc.wire.payloads import Payloads, read_into

from .local_stream import LocalStream
from .shared_buffers import Location
from .stream_pool import Stream

_FLOAT32_BYTES = 4
_MOST_REQUESTED = 2_048
"""Segments in a request for segments in shared memory, which is one packet: an index and a version have 15 bytes."""
_NOWHERE = (None, None)
"""No array of the call is shared with the shard."""


class ShardCall(ABC):
    """The portion of a pull or push that goes to one shard.

    Attributes
    ----------
    place
        The shard's placement.
    run
        Its segments, in order; the first `done` of them are finished.
    stream, route
        The stream in use, None while there is none; and the method it is a stream of.
    arrays
        Arrays that the shard may access in place; None for one that a codec encodes.
    locations
        Locations of these arrays in shared blocks; empty: none is in a block.
    waiting_since_s, tries
        Start of the wait for the next reply, by the monotonic clock, and the number of retries since.
    warned
        Whether that wait was logged.
    reported_in
        Epoch of the placement in which a `ClockReport` for the finished segments was begun.
    sent, received
        Bytes of segments' payloads in messages, including messages that were lost.
    shared_sent, shared_received
        Bytes of segments that went through shared memory instead.
    """

    method = ""
    window: int | None = None
    """Messages that may be unanswered at a time; None: any number."""
    repeats = True
    """Whether finished segments may be sent again: a repeated push is a duplicate."""

    def __init__(self, job: str, place: ShardPlacement, run: Sequence[SegmentSpan]) -> None:
        self.job = job
        self.place = place
        self.run = run
        self.done = 0
        self.stream: Stream | LocalStream | None = None
        self.route = self.method
        self.waiting_since_s = 0.0
        self.tries = 0
        self.warned = False
        self.reported_in = 0
        self.sent = self.received = self.shared_sent = self.shared_received = 0
        self.arrays: Sequence[np.ndarray | DeviceSource | None] = ()
        self.locations: Sequence[Location | None] = ()
        self._shared: Sequence[segments.SharedArray | None] = _NOWHERE

    def share(self, arrays: Sequence[segments.SharedArray | None]) -> None:
        """Let the shard access these arrays in place, until the call is done."""
        self._shared = arrays or _NOWHERE

    @property
    def shares(self) -> bool:
        """Whether the shard may still access its arrays."""
        return self.done < len(self.run) and any(array is not None for array in self._shared)

    @property
    def holds_no_numbers(self) -> bool:
        """Whether its requests and replies only name segments in shared memory."""
        return all(array is not None for array in self._shared)

    def unshare(self) -> None:
        """Continue without shared memory; the shard may still access the old block."""
        self.locations, self._shared = (), _NOWHERE

    @property
    def where(self) -> str:
        """Prefix of error messages."""
        return f"{self.method.lower()}: shard {self.place.shard} at {self.place.address}"

    def together(self) -> Sequence[ShardCall]:
        """This call, and one whose request it sends with its own."""
        return (self,)

    @property
    def target(self) -> wire.Target:
        """The shard incarnation that requests are addressed to."""
        return wire.Target(job=self.job, shard_epoch=self.place.shard_epoch, run_id=self.place.run_id)

    @property
    def passed(self) -> int:
        """Clocks that the replica has passed on the finished segments; 0: none that a shard could lack."""
        return 0

    def report(self, placement: Placement, pusher: Pusher) -> list[ClockReport]:
        """Report `passed` for the finished segments to their current shards, if these are others than they were.

        Each of them may have been restored from a set and lack this call. Its other replicas then wait for a push that
        is not sent again, while this call may wait at another shard for theirs.
        """
        if not self.passed or self.reported_in == placement.epoch or self.is_current(placement):
            return []
        self.reported_in = placement.epoch
        finished = {span.index: span for span in self.run[: self.done]}
        runs = ([finished[i] for i in place.segments if i in finished] for place in placement.places)
        return [
            ClockReport(self.job, place, run, self.passed, pusher, len(placement.spans))
            for place, run in zip(placement.places, runs, strict=True)
            if run
        ]

    @abstractmethod
    def requests(self) -> Iterator[bytes]:
        """Messages for all segments that are not done."""

    def _next(self, part: bulk.SegmentPayload) -> SegmentSpan:
        """Segment that a reply is for, which must be the next one."""
        if self.done == len(self.run) or part.index != self.run[self.done].index:
            raise Rejected(f"{self.where}: answered segment {part.index}, which was not the next one")
        return self.run[self.done]

    def _fill(self, part: bulk.SegmentPayload, out: np.ndarray, shared: segments.SharedArray | None) -> None:
        """Store the values of a reply: the shard has written them to shared memory, or they are decoded here."""
        if part.shared and shared is None:
            raise Rejected(f"{self.where}: segment {part.index} was written to shared memory that was not requested")
        if part.shared:
            return
        try:
            read_into(part, out)
        except Rejected as error:
            raise Rejected(f"{self.where}: {error}") from None
        self.received += len(part.data or b"")

    @abstractmethod
    def handle_reply(self, answer: object) -> None:
        """Process the next reply.

        Raises
        ------
        Rejected
            It does not match these requests.
        """

    def is_current(self, placement: Placement) -> bool:
        """Whether its shard is unchanged: the same incarnation, with the same segments."""
        return self.place in placement.places

    def continued_at(self, placement: Placement) -> list[Self]:
        """Calls for the remaining segments at their current shards; this one keeps what is done and ends.

        What a shard did in an earlier epoch is lost; segments that it migrated are not. For a shard that has left,
        the placement does not show in which epoch it migrated its segments: where `repeats`, all are sent again. The
        deadline of the new calls counts from the start of this one's wait.

        Raises
        ------
        Rejected
            A segment has no shard any more.
        """
        epochs = {place.shard: place.shard_epoch for place in placement.places}
        left_in = None if self.repeats else self.place.shard_epoch
        if epochs.get(self.place.shard, left_in) != self.place.shard_epoch:
            self.forget()
        left = {span.index: span for span in self.run[self.done :]}
        self.run = self.run[: self.done]
        calls = []
        for place in placement.places:
            held = [left.pop(index) for index in place.segments if index in left]
            if held:
                calls.append(self._at(place, held))
        if left:
            raise Rejected(f"{self.where}: segment {min(left)} of the job has no place any more")
        return calls

    def forget(self) -> None:
        """Reset: no segment is done."""
        self.done = 0

    def _at(self, place: ShardPlacement, run: Sequence[SegmentSpan]) -> Self:
        call = copy.copy(self)
        call.place, call.run, call.stream = place, run, None
        call.sent = call.received = call.shared_sent = call.shared_received = 0
        call.forget()
        return call


class PullCall(ShardCall):
    """A pull from one shard into `out`, which begins at number `origin` of the vector; float32 is encoded by `codec`.

    `waited_s` is the time until the shard reported that the requested clock was reached.
    """

    method = "Pull"

    def __init__(
        self,
        job: str,
        place: ShardPlacement,
        run: Sequence[SegmentSpan],
        out: np.ndarray,
        versions: np.ndarray,
        vector: str,
        clock: int = 0,
        pusher: Pusher | None = None,
        origin: int = 0,
        codec: segments.Codec.ValueType = segments.CODEC_FP32,
    ) -> None:
        super().__init__(job, place, run)
        self._out, self._versions, self._origin = out, versions, origin
        self.arrays = (out if codec == segments.CODEC_FP32 else None,)
        self._began_s, self.waited_s = runtime.monotonic(), 0.0
        self._request = wire.PullRequest(vector=vector, clock=clock, codec=codec)
        if pusher is not None:
            self._request.pusher.CopyFrom(pusher_to_wire(pusher))

    @property
    def passed(self) -> int:
        """See `ShardCall`."""
        return self._request.clock

    @property
    def is_one_request(self) -> bool:
        """Whether it needs one request at most, so that a push can send it."""
        return len(self.run) <= _MOST_REQUESTED

    def requests(self) -> Iterator[bytes]:
        """See `openings`."""
        return (request.SerializeToString() for request in self.openings())

    def openings(self) -> Iterator[wire.PullRequest]:
        """One request, for the remaining segments; several where they are in shared memory and very many."""
        left = [span.index for span in self.run[self.done :]]
        known = self._versions[left].min(initial=0) >= 0
        at_once = len(left) if self._shared[0] is None else _MOST_REQUESTED
        for first in range(0, max(1, len(left)), max(1, at_once)):
            some = left[first : first + at_once]
            request = wire.PullRequest(target=self.target, segments=some)
            request.MergeFrom(self._request)
            if known:
                request.if_newer_than.extend(self._versions[some].tolist())
            if self._shared[0] is not None:
                request.shared.CopyFrom(self._shared[0])
            yield request

    def handle_reply(self, answer: object) -> None:
        """Store the received segments in `out`."""
        assert isinstance(answer, bytes)
        _, parts = bulk.decode(answer)
        if not parts:
            self.waited_s = runtime.monotonic() - self._began_s
        self.store(parts)

    def store(self, parts: Sequence[bulk.SegmentPayload]) -> None:
        """Store the next segments in `out`."""
        for part in parts:
            span = self._next(part)
            if not part.unchanged:
                out = self._out[span.start - self._origin : span.stop - self._origin]
                self._fill(part, out, self._shared[0])
                # An unchanged version was not written again.
                self.shared_received += out.nbytes * (part.shared and part.version != self._versions[span.index])
            self._versions[span.index] = part.version
            self.done += 1

    def unshare(self) -> None:
        """See `ShardCall`; segments that are not done may be partly written, and have no version."""
        super().unshare()
        for span in self.run[self.done :]:
            self._versions[span.index] = -1


class ClockReport(PullCall):
    """A pull for `clock` that transfers no values: it has every version already."""

    def __init__(
        self, job: str, place: ShardPlacement, run: Sequence[SegmentSpan], clock: int, pusher: Pusher, segments: int
    ) -> None:
        newest = np.full(segments, np.iinfo(np.int64).max)
        super().__init__(job, place, run, np.empty(0, np.float32), newest, PARAMETERS, clock, pusher)

    @property
    def passed(self) -> int:
        """See `ShardCall`: the finished segments are reported by the call that they belong to."""
        return 0


@dataclass(frozen=True)
class Upload:
    """What a push or exchange sends to all shards.

    Attributes
    ----------
    values
        Of the pushed range of the vector, which begins at its number `origin`.
    versions
        See `Parameters.push`.
    answers
        Codec of an exchange's replies.
    """

    values: np.ndarray | DeviceSource
    versions: np.ndarray
    push: Push
    rule: segments.Rule
    origin: int
    answers: segments.Codec.ValueType = segments.CODEC_FP32


class PushCall(ShardCall):
    """A push to one shard.

    `staleness` and `duplicates` are sums over the acknowledged segments; `lost` is a maximum. `pull` is a pull from the
    same shard, whose request is sent with the push, and whose replies follow; None: there is none.
    """

    method = "Push"

    def __init__(
        self, job: str, place: ShardPlacement, run: Sequence[SegmentSpan], upload: Upload, payloads: Payloads
    ) -> None:
        super().__init__(job, place, run)
        self.push, self._upload, self._payloads, self._versions = upload.push, upload, payloads, upload.versions
        self.arrays = (upload.values if payloads.as_they_are else None,)
        self._first = 0  # segments that were done when the current stream began
        self.pull: PullCall | None = None
        self.staleness = self.duplicates = self.lost = 0

    @property
    def passed(self) -> int:
        """See `ShardCall`; initial values and bundles have no clock of a replica."""
        return 0 if self.push.assign or self.push.bundle is not None else self.push.clock + 1

    def requests(self) -> Iterator[bytes]:
        """The opening, and all remaining segments; small ones share a message."""
        left = self.run[self.done :]
        pieces: list[bytes | memoryview] = [bulk.head(self._opening(len(left)).SerializeToString())]
        for further in self._encoded(left) if self._shared[0] is None else self._referred(left):
            yield b"".join([*pieces, *further])
            pieces = []

    def together(self) -> Sequence[ShardCall]:
        """See `ShardCall`."""
        return (self,) if self.pull is None else (self, self.pull)

    def hand_over(self) -> PullCall:
        """Leave the stream to the pull, whose replies are the next ones in it; returns the pull."""
        assert self.pull is not None
        pull, self.pull = self.pull, None
        pull.stream, pull.route, self.stream = self.stream, self.route, None
        return pull

    def _opening(self, count: int) -> wire.PushOpening:
        opening = push_to_wire(self.push, self.target, self._upload.rule, count, self._upload.answers)
        if self._shared[0] is not None:
            opening.shared.CopyFrom(self._shared[0])
        if self.pull is not None:
            (request,) = self.pull.openings()
            opening.pull.CopyFrom(request)
        return opening

    def _encoded(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes | memoryview]]:
        """Encoded segments of each message, as pieces; ends where the push was aborted meanwhile."""
        groups = list(_adjacent(left, bulk.FULL_BYTES))
        origin, values = self._upload.origin, self._upload.values
        ranges = [(group[0].start - origin, group[-1].stop - origin) for group in groups]
        # of a device, each block is sent while the next one is copied
        blocks = values.blocks(ranges) if isinstance(values, DeviceSource) else (values[a:b] for a, b in ranges)
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

    def _referred(self, left: Sequence[SegmentSpan]) -> Iterator[list[bytes]]:
        """Messages that refer to segments in shared memory."""
        for group in self._shared_groups(left):
            indices = [span.index for span in group]
            self.shared_sent += _FLOAT32_BYTES * sum(span.length for span in group)
            yield [bulk.in_shared(indices, np.maximum(self._versions[indices], 0).tolist())]

    def _shared_groups(self, left: Sequence[SegmentSpan]) -> Iterator[Sequence[SegmentSpan]]:
        return (left[first : first + bulk.FULL_SHARED] for first in range(0, len(left), bulk.FULL_SHARED))

    def abort(self) -> None:
        """Abort the push: what its unacknowledged payloads hold returns to the residual."""
        self._payloads.restore_residual(self.run[self.done :])

    def begin(self, base: int | None) -> None:
        """Start sending with this base; replies count from here."""
        self.push = dataclasses.replace(self.push, base=base)
        self._first = self.done

    def handle_reply(self, answer: object) -> None:
        """Add up the figures of a reply; the last one may have the first segments of the pull."""
        assert isinstance(answer, bytes)
        acknowledgement, parts = bulk.decode(answer)
        if acknowledgement is None:
            raise Rejected(f"{self.where}: answered without an acknowledgement")
        reply = bulk.parse(wire.PushAcknowledgement, acknowledgement)
        self.done = self._first + reply.acknowledged
        self.staleness += reply.staleness
        self.duplicates += reply.duplicates
        self.lost = max(self.lost, reply.lost)
        if parts:
            if self.pull is None or self.done < len(self.run):
                raise Rejected(f"{self.where}: answered with segments that were not requested")
            self.pull.store(parts)

    def forget(self) -> None:
        """See `ShardCall`."""
        super().forget()
        self.staleness = self.duplicates = self.lost = 0

    def _at(self, place: ShardPlacement, run: Sequence[SegmentSpan]) -> Self:
        call = super()._at(place, run)
        call.pull = None  # of the segments at the earlier place: it has its own stream later
        return call


class ExchangeCall(PushCall):
    """An exchange with one shard: a push whose replies are the previous values, written into `out`.

    Replies are encoded by `answers`.
    """

    method = "Exchange"
    window = EXCHANGE_WINDOW
    repeats = False  # shards keep the replies to the last messages only

    def __init__(
        self,
        job: str,
        place: ShardPlacement,
        run: Sequence[SegmentSpan],
        upload: Upload,
        payloads: Payloads,
        out: np.ndarray,
    ) -> None:
        super().__init__(job, place, run, upload, payloads)
        self._out = out
        self.arrays = (*self.arrays, out if upload.answers == segments.CODEC_FP32 else None)

    def _opening(self, count: int) -> wire.PushOpening:
        opening = super()._opening(count)
        if self._shared[1] is not None:
            opening.shared_answers.CopyFrom(self._shared[1])
        return opening

    def _shared_groups(self, left: Sequence[SegmentSpan]) -> Iterator[Sequence[SegmentSpan]]:
        return _adjacent(left, bulk.FULL_BYTES)  # a shard caches the reply to each

    def handle_reply(self, answer: object) -> None:
        """Store the previous centre in `out`."""
        assert isinstance(answer, bytes)
        _, parts = bulk.decode(answer)
        if not parts:
            self.lost = max(self.lost, bulk.parse(wire.ExchangeReply, answer).lost)
            return
        for part in parts:
            span = self._next(part)
            out = self._out[span.start - self._upload.origin : span.stop - self._upload.origin]
            self._fill(part, out, self._shared[1])
            self.shared_received += out.nbytes * part.shared
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
