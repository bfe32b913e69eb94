"""State of one pull or push at one shard: its requests, and the handling of its replies.

A call records its progress, so that it can resume in another stream: `requests` covers only what remains.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.errors import Rejected
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.wire import bulk, payloads

from .shared_buffers import Location
from .stream_pool import Stream

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
    stream
        The stream in use; None while there is none.
    lies
        Locations of the call's arrays in shared blocks, in the call's order; empty: none is in a block.
    waiting_since_s, tries
        Start of the wait for the next reply, by the monotonic clock, and the number of retries since.
    sent, received
        Bytes of segments' payloads in messages, including messages that were lost.
    shared_sent, shared_received
        Bytes of segments that went through shared memory instead.
    """

    method = ""
    repeats = True
    """Whether finished segments may be sent again: a repeated push is a duplicate."""

    def __init__(self, job: str, place: ShardPlacement, run: Sequence[SegmentSpan]) -> None:
        self.job = job
        self.place = place
        self.run = run
        self.done = 0
        self.stream: Stream | None = None
        self.waiting_since_s = 0.0
        self.tries = 0
        self.sent = self.received = self.shared_sent = self.shared_received = 0
        self.lies: Sequence[Location | None] = ()
        self._shared: Sequence[segments.SharedArray | None] = _NOWHERE

    def share(self, arrays: Sequence[segments.SharedArray | None]) -> None:
        """Let the shard access these arrays in place, until the call is done."""
        self._shared = arrays or _NOWHERE

    @property
    def shares(self) -> bool:
        """Whether the shard may still access its arrays."""
        return self.done < len(self.run) and any(array is not None for array in self._shared)

    def unshare(self) -> None:
        """Continue without shared memory; the shard may still access the old block."""
        self.lies, self._shared = (), _NOWHERE

    @property
    def where(self) -> str:
        """Prefix of error messages."""
        return f"{self.method.lower()}: shard {self.place.shard} at {self.place.address}"

    @property
    def target(self) -> wire.Target:
        """The shard incarnation that requests are addressed to."""
        return wire.Target(job=self.job, shard_epoch=self.place.shard_epoch, run_id=self.place.run_id)

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
            raise Rejected(f"{self.where}: segment {part.index} was put where nothing was asked for")
        if part.shared:
            return
        try:
            payloads.read_into(part, out)
        except Rejected as error:
            raise Rejected(f"{self.where}: {error}") from None
        self.received += len(part.data or b"")

    @abstractmethod
    def take(self, answer: object) -> None:
        """Process the next reply.

        Raises
        ------
        Rejected
            It does not match these requests.
        """

    def stays(self, placement: Placement) -> bool:
        """Whether its shard is unchanged: the same incarnation, with the same segments."""
        return self.place in placement.places

    def go_on(self, placement: Placement) -> list[Self]:
        """Calls for the remaining segments at their current shards; this one keeps what is done and ends.

        What a shard did in an earlier epoch is lost; segments that it migrated are not. For a shard that has left,
        the placement does not show in which epoch it migrated its segments: where `repeats`, all are sent again. The
        deadline of the new calls counts from the start of this one's wait.

        Raises
        ------
        Rejected
            A segment has no shard any more.
        """
        lives = {place.shard: place.shard_epoch for place in placement.places}
        left_in = None if self.repeats else self.place.shard_epoch
        if lives.get(self.place.shard, left_in) != self.place.shard_epoch:
            self.forget()
        left = {span.index: span for span in self.run[self.done :]}
        self.run = self.run[: self.done]
        legs = []
        for place in placement.places:
            held = [left.pop(index) for index in place.segments if index in left]
            if held:
                legs.append(self._to(place, held))
        if left:
            raise Rejected(f"{self.where}: segment {min(left)} of the job has no place any more")
        return legs

    def forget(self) -> None:
        """Reset: no segment is done."""
        self.done = 0

    def _to(self, place: ShardPlacement, run: Sequence[SegmentSpan]) -> Self:
        leg = copy.copy(self)
        leg.place, leg.run, leg.stream = place, run, None
        leg.sent = leg.received = leg.shared_sent = leg.shared_received = 0
        leg.forget()
        return leg
