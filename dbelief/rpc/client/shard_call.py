"""State of one call at one shard: its requests, and the handling of its replies; with the pull.

A call records its progress, so that it can resume in another stream: `requests` covers only what remains.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import numpy as np

from dbelief.arrays.push_source import PushSource
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import PARAMETERS, Pusher
from dbelief.errors import Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import pusher_to_wire, target_to_wire
from dbelief.rpc.wire.payloads import read_into

from .received_numbers import ReceivedNumbers
from .shared_buffers import Location
from .socket_stream import SocketStream
from .stream_pool import Stream

MOST_REQUESTED = 2_048
"""Segments in a request for segments in shared memory, which is one packet: an index and a version have 15 bytes, and
what names keys and rows 30."""
FLOAT32_BYTES = 4
_NOWHERE = (None, None)
"""No array of the call is shared with the shard."""


class SocketPool(Protocol):
    """Where the stream of a call returns to."""

    def put_back(self, place: ShardPlacement, method: str, stream: SocketStream) -> None:
        """Return a stream, all of whose replies were read."""


class ShardCall(ABC):
    """The portion of a pull or push that goes to one shard.

    Attributes
    ----------
    place
        The shard's placement.
    run
        Its segments, in order; the first `done` of them are finished.
    stream, route, pool
        The stream in use, None while there is none; the method it is a stream of; and where it returns to, None: to the
        pool of gRPC's streams.
    arrays
        Arrays that the shard may access in place; None for one that a codec encodes.
    locations
        Locations of these arrays in shared blocks, None for one that is in none; empty: not looked up.
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
    pull
        Pull that follows in its stream; None: none does.
    """

    method = ""
    repeats = True
    """Whether finished segments may be sent again: a repeated push is a duplicate."""

    def __init__(self, job: str, place: ShardPlacement, run: Sequence[SegmentSpan]) -> None:
        self.job = job
        self.place = place
        self.run = run
        self.done = 0
        self.stream: Stream | SocketStream | None = None
        self.route = self.method
        self.pool: SocketPool | None = None
        self.waiting_since_s = 0.0
        self.tries = 0
        self.warned = False
        self.reported_in = 0
        self.sent = self.received = self.shared_sent = self.shared_received = 0
        self.arrays: Sequence[np.ndarray | PushSource | None] = ()
        self.locations: Sequence[Location | None] = ()
        self._shared: Sequence[segments.SharedArray | None] = _NOWHERE
        self.pull: PullCall | None = None

    def hand_over(self) -> PullCall:
        """Leave the stream to `pull`, whose replies are the next ones in it; returns it."""
        assert self.pull is not None
        pull, self.pull = self.pull, None
        pull.stream, pull.route, pull.pool, self.stream = self.stream, self.route, self.pool, None
        return pull

    def share(self, arrays: Sequence[segments.SharedArray | None]) -> None:
        """Let the shard access these arrays in place, until the call is done."""
        self._shared = arrays or _NOWHERE

    @property
    def shares(self) -> bool:
        """Whether the shard may still access its arrays."""
        return self.done < len(self.run) and self.names_memory

    @property
    def holds_no_numbers(self) -> bool:
        """Whether its requests and replies only name segments in shared memory."""
        return all(array is not None for array in self._shared)

    @property
    def has_rows(self) -> bool:
        """Whether it has rows of tables that are in no array for shards: their buckets are the last ones."""
        return self.run[-1].by_key

    @property
    def fits_a_packet(self) -> bool:
        """Whether its first request, without numbers, fits into a packet of a local stream."""
        return True

    @property
    def names_memory(self) -> bool:
        """Whether its requests name segments in shared memory."""
        return any(array is not None for array in self._shared)

    def unshare(self) -> None:
        """Continue without shared memory; the shard may still access the old block."""
        self.locations, self._shared = (), _NOWHERE

    @property
    def unsent(self) -> bool:
        """Whether its stream has a request for which there is no room yet, which only `answer` sends."""
        return isinstance(self.stream, SocketStream) and self.stream.unsent

    @property
    def size(self) -> int:
        """Numbers in the segments that are not done."""
        return sum([span.length for span in self.run[self.done :]])

    @property
    def window(self) -> int | None:
        """Messages that may be unanswered at a time; None: any number."""
        return None

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
        return target_to_wire(self.job, self.place.shard_epoch, self.place.run_id)

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

    def _check_shared(self, part: bulk.SegmentPayload, shared: segments.SharedArray | None) -> None:
        """Check that a shard was asked to write a segment to shared memory."""
        if shared is None:
            raise Rejected(f"{self.where}: segment {part.index} was written to shared memory that was not requested")

    def _fill(self, part: bulk.SegmentPayload, out: np.ndarray) -> None:
        """Decode the numbers of a reply into `out`."""
        try:
            self._read(part, out)
        except Rejected as error:
            raise Rejected(f"{self.where}: {error}") from None
        self.received += len(part.data or b"")

    def _read(self, part: bulk.SegmentPayload, out: np.ndarray) -> None:
        """See `read_into`."""
        read_into(part, out)

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

    def calls_in(self, placement: Placement) -> list[Self]:
        """This call where its shard is unchanged, else the calls that continue it."""
        return [self] if self.is_current(placement) else self.continued_at(placement)

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

    `waited_s` is the time until the shard reported that the requested clock was reached. `received`: numbers that the
    answers may be differences from; None: they are none.
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
        received: ReceivedNumbers | None = None,
    ) -> None:
        super().__init__(job, place, run)
        self._received = received
        self._bases = received.of(place, run) if received is not None else {}
        self._out, self._versions, self._origin = out, versions, origin
        self.arrays = (out if codec == segments.CODEC_FP32 else None,)
        self._began_s, self.waited_s = runtime.monotonic(), 0.0
        self._pusher = None if pusher is None else pusher_to_wire(pusher)
        self._vector, self._clock, self._codec = vector, clock, codec

    @property
    def passed(self) -> int:
        """See `ShardCall`."""
        return self._clock

    @property
    def is_one_request(self) -> bool:
        """Whether it needs one request at most, so that a push can send it."""
        return len(self.run) <= MOST_REQUESTED

    def requests(self) -> Iterator[bytes]:
        """See `openings`."""
        return (request.SerializeToString() for request in self.openings())

    def openings(self) -> Iterator[wire.PullRequest]:
        """One request, for the remaining segments; several where they are in shared memory and very many."""
        left, buckets = [span.index for span in self.run[self.done :]], list[int]()
        if left and self.run[-1].by_key:  # of a report, which names no keys; they are behind all others
            buckets = [span.index for span in self.run[self.done :] if span.by_key]
            left = left[: len(left) - len(buckets)]
        versions = self._versions[left].tolist()
        known = min(versions, default=0) >= 0
        at_once = len(left) if self._shared[0] is None else MOST_REQUESTED
        for first in range(0, max(1, len(left)), max(1, at_once)):
            yield wire.PullRequest(
                target=self.target,
                vector=self._vector,
                segments=left[first : first + at_once],
                if_newer_than=versions[first : first + at_once] if known else None,
                pusher=self._pusher,
                clock=self._clock,
                codec=self._codec,
                shared=self._shared[0],
                bases=self._named(left[first : first + at_once]),
                rows=[wire.RowKeys(segment=index) for index in buckets] if first + at_once >= len(left) else None,
            )

    def _named(self, indices: Sequence[int]) -> list[int] | None:
        """See `PullRequest.bases`."""
        if self._received is None:
            return None
        found = (self._bases.get(index) for index in indices)
        return [0 if base is None else base.version + 1 for base in found]

    def handle_reply(self, answer: object) -> None:
        """Store the received segments in `out`."""
        assert isinstance(answer, bytes | memoryview)
        _, parts = bulk.decode(answer)
        if not parts:
            self.waited_s = runtime.monotonic() - self._began_s
        self.store(parts)

    def store(self, parts: Sequence[bulk.SegmentPayload]) -> None:
        """Store the next segments in `out`."""
        for part in parts:
            span = self._next(part)
            if part.shared:
                self._check_shared(part, self._shared[0])
                if part.version != self._versions[span.index]:  # an unchanged version was not written again
                    self.shared_received += FLOAT32_BYTES * span.length
            elif not part.unchanged:
                self._fill(part, self._out[span.start - self._origin : span.stop - self._origin])
            self._versions[span.index] = part.version
            self.done += 1

    def _read(self, part: bulk.SegmentPayload, out: np.ndarray) -> None:
        """See `ReceivedNumbers.read`."""
        if self._received is None:
            super()._read(part, out)
        else:
            self._received.read(self.place, part, self._bases.pop(part.index, None), out)

    def _at(self, place: ShardPlacement, run: Sequence[SegmentSpan]) -> Self:
        call = super()._at(place, run)
        call._bases = call._received.of(place, run) if call._received is not None else {}
        return call

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

    def _fill(self, part: bulk.SegmentPayload, out: np.ndarray) -> None:
        """Leave numbers out: a shard that is restored before it answers may send them all the same."""
        self.received += len(part.data or b"")

    @property
    def passed(self) -> int:
        """See `ShardCall`: the finished segments are reported by the call that they belong to."""
        return 0
