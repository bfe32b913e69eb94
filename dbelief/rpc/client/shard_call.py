"""What one shard has to do with one call: the requests for it, and what its answers mean.

A leg knows how far it has come, so that it can go on in another stream: `requests` are those for what is left.
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
"""Of the arrays of a leg none is used by the shard."""


class ShardCall(ABC):
    """The part of a pull or push that one shard has.

    Attributes
    ----------
    place
        Where the shard is.
    run
        The segments that it is about, in order; the first `done` of them are finished.
    stream
        Where it is under way; None while it is not.
    lies
        Where the arrays that it is about are in blocks, in the order in which the call has them; empty: they are not.
    waiting_since_s, tries
        Since when the next answer is awaited, by the monotonic clock, and how often it was begun again since.
    sent, received
        Bytes of segments' payloads in messages, whatever became of them.
    shared_sent, shared_received
        Bytes of segments that went through shared memory instead.
    """

    method = ""
    repeats = True
    """Whether what is done may be asked for once more: a push again is a duplicate."""

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
        """Have the shard use these of its arrays where they lie, until it is done."""
        self._shared = arrays or _NOWHERE

    @property
    def shares(self) -> bool:
        """Whether the shard may be at work on its arrays."""
        return self.done < len(self.run) and any(array is not None for array in self._shared)

    def unshare(self) -> None:
        """Go on without; the shard was left what it may be at work on."""
        self.lies, self._shared = (), _NOWHERE

    @property
    def where(self) -> str:
        """What an error begins with."""
        return f"{self.method.lower()}: shard {self.place.shard} at {self.place.address}"

    @property
    def target(self) -> wire.Target:
        """The life of the shard that requests are meant for."""
        return wire.Target(job=self.job, shard_epoch=self.place.shard_epoch, run_id=self.place.run_id)

    @abstractmethod
    def requests(self) -> Iterator[bytes]:
        """Messages for all that is not done."""

    def _next(self, part: bulk.SegmentPayload) -> SegmentSpan:
        """The segment that an answer is for, which has to be the next one."""
        if self.done == len(self.run) or part.index != self.run[self.done].index:
            raise Rejected(f"{self.where}: answered segment {part.index}, which was not the next one")
        return self.run[self.done]

    def _fill(self, part: bulk.SegmentPayload, out: np.ndarray, shared: segments.SharedArray | None) -> None:
        """See that the numbers of an answer are where they belong: the shard has put them there, or they are read."""
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
        """Use the next answer.

        Raises
        ------
        Refused
            Where it is not one to these requests.
        """

    def stays(self, placement: Placement) -> bool:
        """Whether its shard is as it was: the same life, with the same segments."""
        return self.place in placement.places

    def go_on(self, placement: Placement) -> list[Self]:
        """Legs for what is left, to where it lives now; this one keeps what is done, and has no more to do.

        What a shard did in an earlier epoch is lost; what it has given to others is not. For a shard that has left, the
        placement does not tell in which epoch it gave its segments away: where `repeats`, all is sent again. The
        deadline of the new legs counts from the start of this one's wait.

        Raises
        ------
        Refused
            A segment has no place any more.
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
        """Nothing of it is done."""
        self.done = 0

    def _to(self, place: ShardPlacement, run: Sequence[SegmentSpan]) -> Self:
        leg = copy.copy(self)
        leg.place, leg.run, leg.stream = place, run, None
        leg.sent = leg.received = leg.shared_sent = leg.shared_received = 0
        leg.forget()
        return leg
