"""The stream of pushes that a client sends: openings and segments in, acknowledgements out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dbelief.errors import Moved, Refused
from dbelief.metrics import Metrics
from dbelief.rpc import frames
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc.convert import push_from_wire

from .life import Life
from .segment import Outcome
from .shard import Shard

ACKNOWLEDGE_EVERY = 16
"""Segments per acknowledgement: an answer to each one costs a fifth of a push's speed."""

Wait = Callable[[Shard, list[int], int], None]


class Pushing:
    """One push, from its opening on.

    Parameters
    ----------
    message
        The `PushOpening`, encoded.
    wait
        Waits until all rounds before a clock are applied to some segments.
    """

    def __init__(self, life: Life, metrics: Metrics, wait: Wait, message: bytes) -> None:
        opening = frames.parse(wire.PushOpening, message)
        self._target = opening.target
        self._count = opening.segments
        self._life, self._metrics, self._wait = life, metrics, wait
        self._shard = life.at(opening.target)
        self._push = push_from_wire(opening)
        self._staged: list[int] = []
        self._reply = wire.PushReply()
        self._told = 0  # of those acknowledged, how many the client knows of
        self._received = 0  # bytes

    @property
    def complete(self) -> bool:
        """Whether all segments that the opening counted are here; never where it did not count them."""
        return 0 < self._count == self._reply.acknowledged

    def take(self, part: frames.Part) -> None:
        """Apply one segment."""
        if self.complete:
            raise Refused(f"a push of {self._count} segments went on with segment {part.index}")
        shard, push, reply = self._shard, self._push, self._reply
        values = frames.numbers(part)
        began = time.perf_counter()
        taken = shard.push(push, part.index, values, part.offset, part.version)
        self._metrics.apply_seconds.observe(time.perf_counter() - began)
        self._received += values.nbytes
        reply.acknowledged += 1
        reply.duplicates += taken.outcome is Outcome.DUPLICATE
        reply.staleness += taken.staleness
        reply.lost = max(reply.lost, taken.lost)
        if shard.staleness == 0 and not push.assign:
            self._staged.append(part.index)
        if taken.outcome is Outcome.DUPLICATE:
            self._metrics.duplicates_total.inc()
        if taken.outcome is Outcome.APPLIED and not push.assign:
            self._metrics.staleness.observe(taken.staleness)

    def replies(self, ended: bool) -> Iterator[wire.PushReply]:
        """What the client is to be told now: all that is done, when it is complete or much."""
        due = self._reply.acknowledged - self._told >= ACKNOWLEDGE_EVERY and not self._staged
        if not (ended or due):
            return
        if ended and self._staged:  # with the dial at 0, a push is done when its round is applied
            self._wait(self._shard, self._staged, self._push.clock + 1)
        self.check_life()  # what a former life applied is not acknowledged in the name of this one
        yield self._reply
        self._told = self._reply.acknowledged
        self._reply = wire.PushReply(acknowledged=self._told)
        if ended:
            self._metrics.pushes_total.labels(self._push.vector).inc()
            self._metrics.bytes_total.labels("received").inc(self._received)

    def check_life(self) -> None:
        """See whether the shard is still in the life that this push is meant for.

        Raises
        ------
        Moved
            It is not.
        """
        if self._life.at(self._target) is not self._shard:
            raise Moved(f"was given its segments anew in epoch {self._life.epoch}")


def answers_to(
    messages: Iterator[bytes], begin: Callable[[bytes], Pushing], may_stay: Callable[[], bool]
) -> Iterator[wire.PushReply]:
    """Take the pushes of one stream, one after another, until it ends or, after one of them, may not stay."""
    push: Pushing | None = None
    for message in messages:
        opening, parts = frames.decode(message)
        if opening is not None:
            if push is not None:
                raise Refused("a push was opened before the one before it was complete")
            push = begin(opening)
        if push is None:
            raise Refused("a push begins with its opening")
        push.check_life()
        for part in parts:
            push.take(part)
        complete = push.complete
        yield from push.replies(complete)
        if complete:
            push = None
            if not may_stay():
                return
    if push is not None:
        yield from push.replies(True)
