"""The stream of exchanges that a client sends: openings and segments in, the centre as it was before out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dbelief.errors import Moved, Refused
from dbelief.metrics import Metrics
from dbelief.rpc import frames
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc.convert import push_from_wire

from .life import Life
from .pushing import Wait


class Exchanging:
    """One exchange, from its opening on.

    Parameters
    ----------
    message
        The `PushOpening`, encoded.
    wait
        Waits until all rounds before a clock are applied to some segments.
    """

    def __init__(self, life: Life, metrics: Metrics, wait: Wait, message: bytes) -> None:
        opening = frames.parse(wire.PushOpening, message)
        self._target, self._count = opening.target, opening.segments
        self._life, self._metrics, self._wait = life, metrics, wait
        self._shard = life.at(opening.target)
        self._push = push_from_wire(opening)
        if opening.rule.name != self._shard.rule.name:
            raise Refused(f"an exchange by the rule {opening.rule.name!r}, and the job's is {self._shard.rule.name!r}")
        self._based = opening.HasField("base")
        self._taken = self._received = 0

    @property
    def complete(self) -> bool:
        """Whether all segments that the opening counted are here."""
        return self._taken == self._count

    def take(self, parts: list[frames.Part]) -> Iterator[bytes]:
        """Apply the segments of one message; the answer to it."""
        if self._taken + len(parts) > self._count:
            raise Refused(f"an exchange of {self._count} segments went on with segment {parts[0].index}")
        numbers = [(part.index, frames.numbers(part)) for part in parts]
        if self._shard.staleness == 0:  # in step: the centre as the round before has left it
            self._wait(self._shard, [part.index for part in parts], self._push.clock)
        began_s = time.perf_counter()
        answers, duplicates, lost = self._shard.exchange(self._push, numbers)
        self._metrics.apply_seconds.observe(time.perf_counter() - began_s)
        self._metrics.duplicates_total.inc(duplicates)
        self.check_life()  # what a former life answered is not told in the name of this one
        if self._based:
            yield wire.ExchangeReply(lost=lost).SerializeToString()
            self._based = False
        pieces: list[bytes | memoryview] = []
        for (index, _), (version, before) in zip(numbers, answers, strict=True):
            pieces += frames.pieces(frames.part_of(index, version, before))
        yield b"".join(pieces)
        self._taken += len(parts)
        self._received += sum(values.nbytes for _, values in numbers)
        if self.complete:
            self._metrics.pushes_total.labels(self._push.vector).inc()
            for way in ("received", "sent"):
                self._metrics.bytes_total.labels(way).inc(self._received)

    def check_life(self) -> None:
        """See whether the shard is still in the life that this exchange is meant for.

        Raises
        ------
        Moved
            It is not.
        """
        if self._life.at(self._target) is not self._shard:
            raise Moved(f"was given its segments anew in epoch {self._life.epoch}")


def answers_to(
    messages: Iterator[bytes], begin: Callable[[bytes], Exchanging], may_stay: Callable[[], bool]
) -> Iterator[bytes]:
    """Take the exchanges of one stream, one after another, until it ends or, after one of them, may not stay."""
    exchange: Exchanging | None = None
    for message in messages:
        opening, parts = frames.decode(message)
        if opening is not None:
            if exchange is not None:
                raise Refused("an exchange was opened before the one before it was complete")
            exchange = begin(opening)
        if exchange is None or not parts:
            raise Refused("an exchange begins with its opening and some segments")
        exchange.check_life()
        yield from exchange.take(parts)
        if exchange.complete:
            exchange = None
            if not may_stay():
                return
