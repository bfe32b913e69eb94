"""Segments that come to a shard and go from it, while it serves the others. It knows no wire.

A segment goes in three steps, each of which may be told again. *Given*: no push is within it, and whoever comes finds
it away; all that it is leaves for the other shard. *There*, and not served: were it served, and the coordinator gone,
two shards would hold it. *Held*: each of both is told what it holds from now on, out of what it has; so the segment
lives at one place, whichever that is, and is dropped at the other.

Each `hold` begins a generation. A stream of segments belongs to the generation in which it was opened and ends with it:
the shard that sends may have been stopped meanwhile, declared dead and replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from dbelief.errors import Moved, Rejected

from ..store.journal import JournalRecord
from ..store.segment import Segment
from ..store.shard import Shard
from .apply import apply, promote
from .segment_state import SegmentState, acquire_exclusive, capture, install


class Migration:
    """One shard's."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._given: dict[int, Segment] = {}
        self._come: dict[int, Segment] = {}
        self._told: dict[int, Mapping[int, int] | None] = {}
        self._generation = 0
        self._lock = threading.Lock()  # of the generation, and of what comes in it

    def send(self, indices: Sequence[int], where: str, send: Callable[[SegmentState], None]) -> int:
        """Hand segments over, one after another; returns how many bytes of numbers that were.

        Raises
        ------
        Refused
            One does not live here; none has gone.
        Exception
            What `send` raised: all that have gone are neither here nor there until `hold` says so.
        """
        missing = sorted(set(indices) - self._shard.segments.keys() - self._given.keys())
        if missing:
            raise Rejected(f"segment {missing[0]} does not live here, and cannot be given to {where}")
        sent = 0
        for index in indices:
            carried = self._give(index, where)
            send(carried)
            sent += carried.nbytes
        return sent

    def _give(self, index: int, where: str) -> SegmentState:
        """Let a segment be away from this moment on; given before and in vain, it goes once more."""
        shard = self._shard
        segment = self._given.get(index) or shard.segments[index]
        acquire_exclusive(segment)
        try:
            segment.moved_to = f"is on its way to {where}"
            carried = capture(segment, shard.dial.passed_clocks(index), shard.answers.for_segment(index), copy=False)
        finally:
            segment.lock.release()
        self._given[index] = segment
        shard.set_segments({i: one for i, one in shard.segments.items() if i != index}, {})
        return carried

    def arrival(self) -> Arrival:
        """A stream that brings segments, from now until the next `hold`."""
        return Arrival(self, self._generation)

    def come(self, carried: SegmentState, generation: int | None = None) -> None:
        """Take a segment in, which is not served yet.

        Parameters
        ----------
        generation
            In which its stream was opened; None: the present one.

        Raises
        ------
        Moved
            The generation is over.
        Refused
            It lives here, or has another rule's state.
        """
        with self._lock:
            if generation not in (None, self._generation):
                raise Moved(f"segment {carried.span.index}: the stream that brings it is of an earlier move")
            self._take_in(carried)

    def _take_in(self, carried: SegmentState) -> None:
        shard, index = self._shard, carried.span.index
        if index in shard.segments:
            raise Rejected(f"segment {index} lives here already")
        segment = shard.make(carried.span)
        with segment.lock:
            install(carried, segment)
        shard.answers.import_segment(index, carried.answers)
        self._come[index], self._told[index] = segment, carried.told
        shard.elsewhere.add(index)  # not served yet: a call for it is to be repeated

    def follow(self, deed: JournalRecord) -> None:
        """Do to a segment that has come, and is not served, what was done to it where it lives.

        Raises
        ------
        Refused
            It has not come, or is not what it was there.
        """
        if deed.index not in self._come:
            raise Rejected(f"segment {deed.index}: something was done to it, and it has not come")
        apply(self._shard, self._come[deed.index], deed)

    def promote(self, shard_epoch: int) -> None:
        """What has come is about to be this shard's own, in this life."""
        for segment in self._come.values():
            promote(segment, shard_epoch)
        self._told = {index: {} for index in self._come}

    @property
    def most(self) -> int:
        """How many segments are here, in whatever way."""
        return len(self._come) + len(self._given) + len(self._shard.segments)

    def commit(self, indices: Collection[int]) -> None:
        """Serve these from now on, and drop all others.

        Raises
        ------
        Moved
            One is not here; nothing has changed.
        """
        with self._lock:
            self._hold(indices)

    def _hold(self, indices: Collection[int]) -> None:
        shard = self._shard
        had = {**self._come, **self._given, **shard.segments}
        missing = sorted(set(indices) - had.keys())
        if missing:
            raise Moved(f"segment {missing[0]} is not here, and cannot be held ({len(missing)} are not)")
        held = {index: had[index] for index in indices}
        for index, segment in had.items():
            with segment.lock:
                segment.moved_to = "" if index in held else segment.moved_to or "lives at another shard now"
        shard.set_segments(held, {index: told for index, told in self._told.items() if index in held})
        for gone in (self._given, self._come, self._told):
            gone.clear()
        self._generation += 1


class Arrival:
    """One stream of segments into a shard."""

    def __init__(self, moves: Migration, generation: int) -> None:
        self._moves, self._generation = moves, generation

    def come(self, carried: SegmentState) -> None:
        """See `Moves.come`."""
        self._moves.come(carried, self._generation)

    def follow(self, deed: JournalRecord) -> None:
        """See `Moves.follow`."""
        self._moves.follow(deed)
