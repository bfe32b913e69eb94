"""What one shard has to do with one pull or push: the requests for it, and what its answers mean.

A leg knows how far it has come, so that it can go on in another stream: `requests` are those for what is left.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from dbelief.errors import Refused
from dbelief.layout import Span
from dbelief.outgoing import Source
from dbelief.placement import Place, Placement
from dbelief.pushes import WINDOW, Push, Pusher
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments

from . import coded, frames
from .convert import push_to_wire, pusher_to_wire
from .sharing import Lies, Shared
from .streams import Stream

_LOOK_S = 0.5
"""How often a sender that waits looks whether it still is to send."""


_NOWHERE = (None, None)
"""Of the arrays of a leg none is used by the shard."""


class Leg(ABC):
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
        Bytes of segments' payloads, whatever became of them.
    """

    method = ""

    def __init__(self, job: str, place: Place, run: Sequence[Span]) -> None:
        self.job = job
        self.place = place
        self.run = run
        self.done = 0
        self.stream: Stream | None = None
        self.waiting_since_s = 0.0
        self.tries = 0
        self.sent = self.received = 0
        self.lies: Sequence[Lies | None] = ()
        self._shared: Sequence[Shared | None] = _NOWHERE

    def share(self, arrays: Sequence[Shared | None]) -> None:
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
        return wire.Target(job=self.job, shard_epoch=self.place.shard_epoch)

    @abstractmethod
    def requests(self) -> Iterator[bytes]:
        """Messages for all that is not done."""

    def _read(self, part: frames.Part, out: np.ndarray) -> None:
        """Write the numbers of an answer where they belong."""
        try:
            coded.read_into(part, out)
        except Refused as error:
            raise Refused(f"{self.where}: {error}") from None
        self.received += len(part.data or b"")

    @abstractmethod
    def take(self, answer: object) -> None:
        """Use the next answer.

        Raises
        ------
        Refused
            Where it is not one to these requests.
        """

    def go_on(self, placement: Placement) -> list[Self]:
        """Legs for what is left, to where it lives now; this one keeps what is done, and has no more to do.

        What a life of a shard has done is gone with it; what it has given to others is not. Who goes on is awaited
        since when this was.

        Raises
        ------
        Refused
            A segment has no place any more.
        """
        now = next((place for place in placement.places if place.shard == self.place.shard), self.place)
        if now.shard_epoch != self.place.shard_epoch:
            self.forget()
        left = {span.index: span for span in self.run[self.done :]}
        self.run = self.run[: self.done]
        legs = []
        for place in placement.places:
            held = [left.pop(index) for index in place.segments if index in left]
            if held:
                legs.append(self._to(place, held))
        if left:
            raise Refused(f"{self.where}: segment {min(left)} of the job has no place any more")
        return legs

    def forget(self) -> None:
        """Nothing of it is done."""
        self.done = 0

    def _to(self, place: Place, run: Sequence[Span]) -> Self:
        leg = copy.copy(self)
        leg.place, leg.run, leg.stream = place, run, None
        leg.sent = leg.received = 0
        leg.forget()
        return leg


class PullLeg(Leg):
    """A pull from one shard into `out`, which begins at number `origin` of the vector; float32 comes by `codec`.

    `waited_s` is how long it took until the shard said that the clock asked for has come.
    """

    method = "Pull"

    def __init__(
        self,
        job: str,
        place: Place,
        run: Sequence[Span],
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
        self._began_s, self.waited_s = time.perf_counter(), 0.0
        self._request = wire.PullRequest(vector=vector, clock=clock, codec=codec)
        if pusher is not None:
            self._request.pusher.CopyFrom(pusher_to_wire(pusher))

    def requests(self) -> Iterator[bytes]:
        """One request, for what is left."""
        left = [span.index for span in self.run[self.done :]]
        request = wire.PullRequest(target=self.target, segments=left)
        request.MergeFrom(self._request)
        held = self._versions[left]
        if (held >= 0).all():
            request.if_newer_than.extend(held.tolist())
        for span in self.run[self.done :]:
            if (slot := self._slot(span)) is not None:
                request.slots.add(block=slot.block, offset=slot.offset, length=slot.length)
        yield request.SerializeToString()

    def take(self, answer: object) -> None:
        """Put segments where they belong."""
        assert isinstance(answer, bytes)
        _, parts = frames.decode(answer)
        if not parts:
            self.waited_s = time.perf_counter() - self._began_s
        for part in parts:
            if self.done == len(self.run) or part.index != self.run[self.done].index:
                raise Refused(f"{self.where}: answered segment {part.index}, which was not the next asked for")
            span = self.run[self.done]
            if part.slot is not None:
                if part.slot != self._slot(span):
                    raise Refused(f"{self.where}: segment {span.index} was put elsewhere than asked for")
            elif not part.unchanged:
                self._read(part, self._out[span.start - self._origin : span.stop - self._origin])
            self._versions[span.index] = part.version
            self.done += 1

    def _slot(self, span: Span) -> frames.Slot | None:
        """Where the shard is to write a segment."""
        out = self._shared[0]
        return out.slot(span.start - self._origin, span.length, self._out.itemsize) if out is not None else None

    def unshare(self) -> None:
        """See `Leg`; what is not done may be written half, and is of no version."""
        super().unshare()
        for span in self.run[self.done :]:
            self._versions[span.index] = -1


class PushLeg(Leg):
    """A push into one shard, from a source that begins at number `origin` of the vector, written as `payloads` does.

    `staleness`, `duplicates` and `lost` are sums over what is acknowledged.
    """

    method = "Push"

    def __init__(
        self,
        job: str,
        place: Place,
        run: Sequence[Span],
        source: Source,
        versions: np.ndarray,
        push: Push,
        rule: segments.Rule,
        payloads: coded.Payloads,
        origin: int = 0,
        answers: segments.Codec.ValueType = segments.CODEC_FP32,
    ) -> None:
        super().__init__(job, place, run)
        self.push = push
        self._source, self._versions, self._rule, self._origin = source, versions, rule, origin
        self._payloads, self._answers = payloads, answers
        self._first = 0  # how many were done when the stream at hand began
        self.staleness = self.duplicates = self.lost = 0

    def requests(self) -> Iterator[bytes]:
        """The opening, and every segment that is left; small ones share a message."""
        left = self.run[self.done :]
        opening = push_to_wire(self.push, self.target, self._rule, len(left), self._answers)
        message: list[bytes | memoryview] = [frames.opening(opening.SerializeToString())]
        groups = list(_together(left, self._full_bytes))
        origin = self._origin
        blocks = self._source.blocks([(group[0].start - origin, group[-1].stop - origin) for group in groups])
        for group, block in zip(groups, blocks, strict=True):
            for span in group:
                values = block[span.start - group[0].start : span.stop - group[0].start]
                version = max(0, int(self._versions[span.index]))
                part = self._part(span, version, values)
                if part is None:
                    return
                message += frames.pieces(part)
            if not self.may_send():
                return
            yield b"".join(message)
            message = []

    @property
    def _full_bytes(self) -> int:
        """How much of a push a message tells."""
        return frames.FULL_BYTES * (1 if self._shared[0] is None else frames.IN_SLOTS)

    def _part(self, span: Span, version: int, values: np.ndarray) -> frames.Part | None:
        """One segment, in the message or where it lies; None where the push was given up meanwhile."""
        if (lies := self._shared[0]) is not None:
            slot = lies.slot(span.start - self._origin, span.length, values.itemsize)
            return frames.placed(span.index, version, values, slot)
        if (part := self._payloads.part(span, version, values)) is not None:
            self.sent += len(part.data or b"")
        return part

    def may_send(self) -> bool:
        """Whether the next message may leave; False where this leg was broken off meanwhile."""
        return True

    def give_back(self) -> None:
        """The push is given up: what was not acknowledged was sent in vain."""
        self._payloads.give_back(self.run[self.done :])

    def begin(self, base: int | None) -> None:
        """Be sent with this base; its answers count from here."""
        self.push = dataclasses.replace(self.push, base=base)
        self._first = self.done

    def take(self, answer: object) -> None:
        """Add up what the shard tells."""
        assert isinstance(answer, wire.PushReply)
        self.done = self._first + answer.acknowledged
        self.staleness += answer.staleness
        self.duplicates += answer.duplicates
        self.lost = max(self.lost, answer.lost)

    def forget(self) -> None:
        """See `Leg`."""
        super().forget()
        self.staleness = self.duplicates = self.lost = 0


class ExchangeLeg(PushLeg):
    """An exchange with one shard: a push whose answers are the numbers as they were before, written into `out`.

    They come as `answers` says. No more than `WINDOW` messages leave before the first of them is answered.
    """

    method = "Exchange"

    def __init__(
        self,
        job: str,
        place: Place,
        run: Sequence[Span],
        source: Source,
        out: np.ndarray,
        versions: np.ndarray,
        push: Push,
        rule: segments.Rule,
        payloads: coded.Payloads,
        origin: int = 0,
        answers: segments.Codec.ValueType = segments.CODEC_FP32,
    ) -> None:
        super().__init__(job, place, run, source, versions, push, rule, payloads, origin, answers)
        self._out = out
        self._ahead = threading.Semaphore(WINDOW)

    @property
    def _full_bytes(self) -> int:
        """How much of an exchange a message tells, wherever it lies: its answer is kept."""
        return frames.FULL_BYTES

    def _part(self, span: Span, version: int, values: np.ndarray) -> frames.Part | None:
        """See `PushLeg`; and where its answer is to lie."""
        part = super()._part(span, version, values)
        if part is not None:
            part.answer = self._slot(span)
        return part

    def _slot(self, span: Span) -> frames.Slot | None:
        """Where the shard is to write the answer for a segment."""
        out = self._shared[1]
        return out.slot(span.start - self._origin, span.length, self._out.itemsize) if out is not None else None

    def requests(self) -> Iterator[bytes]:
        """See `PushLeg`; what was begun before in vain has a semaphore of its own, and ends."""
        self._ahead = threading.Semaphore(WINDOW)
        return super().requests()

    def may_send(self) -> bool:
        """Wait until few enough messages are under way."""
        ahead = self._ahead
        while not ahead.acquire(timeout=_LOOK_S):
            if self.stream is None or self._ahead is not ahead:
                return False
        return True

    def take(self, answer: object) -> None:
        """Put what the centre was where it belongs."""
        assert isinstance(answer, bytes)
        _, parts = frames.decode(answer)
        if not parts:
            self.lost = max(self.lost, frames.parse(wire.ExchangeReply, answer).lost)
            return
        for part in parts:
            if self.done == len(self.run) or part.index != self.run[self.done].index:
                raise Refused(f"{self.where}: answered segment {part.index}, which was not the next one sent")
            span = self.run[self.done]
            if part.slot is None:
                self._read(part, self._out[span.start - self._origin : span.stop - self._origin])
            elif part.slot != self._slot(span):
                raise Refused(f"{self.where}: segment {part.index} was put elsewhere than asked for")
            self.staleness += max(0, part.version - max(0, int(self._versions[span.index])))
            self._versions[span.index] = part.version + 1
            self.done += 1
        self._ahead.release()


def _together(run: Sequence[Span], full_bytes: int) -> Iterator[Sequence[Span]]:
    """Cut a run into those that share a message: neighbours, as many as fill it."""
    first = 0
    for number, span in enumerate(run):
        full = 4 * (span.stop - run[first].start) > full_bytes
        if number > first and (full or span.start != run[number - 1].stop):
            yield run[first:number]
            first = number
    yield run[first:]
