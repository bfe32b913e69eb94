"""Migration of segments to and from a shard, while it serves the others. Independent of the wire format.

A segment migrates in three steps, each of which may be repeated. *Sent*: no push is executing in it, later calls are
rejected with `Moved`, and its complete state is sent to the other shard. *Received*, but not served: if it were served
and the coordinator failed, two shards would own it. *Committed*: each of the two shards receives the list of segments
that it owns from now on, out of those it has. So exactly one of them serves the segment, and the other drops it.

Each `commit` begins a generation. A stream of segments belongs to the generation in which it was opened and ends with
it: the sending shard may have been suspended meanwhile, declared failed and replaced.
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
    """Migration state of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._given: dict[int, Segment] = {}
        self._come: dict[int, Segment] = {}
        self._told: dict[int, Mapping[int, int] | None] = {}
        self._generation = 0
        self._lock = threading.Lock()  # guards the generation, and the segments received in it

    def send(self, indices: Sequence[int], where: str, send: Callable[[SegmentState], None]) -> int:
        """Send segments to another shard, one after another; returns the bytes of numbers sent.

        Raises
        ------
        Rejected
            This shard does not own one of them; none has been sent.
        Exception
            What `send` raised: the segments passed to it are served by neither shard until the next `commit`.
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
        """Stop serving a segment and capture its state; a segment whose transfer failed before is captured again."""
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
        """Receiver of one incoming stream of segments, valid until the next `commit`."""
        return Arrival(self, self._generation)

    def come(self, carried: SegmentState, generation: int | None = None) -> None:
        """Receive a segment, without serving it yet.

        Parameters
        ----------
        generation
            In which its stream was opened; None: the current one.

        Raises
        ------
        Moved
            The generation has ended.
        Rejected
            This shard serves the segment already, or its state is that of another update rule.
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
        shard.elsewhere.add(index)  # not served yet: a call for it must be retried

    def follow(self, deed: JournalRecord) -> None:
        """Apply a leader's journal record to a segment that was received and is not served yet.

        Raises
        ------
        Rejected
            The segment was not received, or its version differs from the leader's.
        """
        if deed.index not in self._come:
            raise Rejected(f"segment {deed.index}: something was done to it, and it has not come")
        apply(self._shard, self._come[deed.index], deed)

    def promote(self, shard_epoch: int) -> None:
        """Prepare the received segments for promotion: this shard will own them in this incarnation."""
        for segment in self._come.values():
            promote(segment, shard_epoch)
        self._told = {index: {} for index in self._come}

    @property
    def most(self) -> int:
        """Number of segments present: received, sent or served."""
        return len(self._come) + len(self._given) + len(self._shard.segments)

    def commit(self, indices: Collection[int]) -> None:
        """Serve these segments from now on, and drop all others.

        Raises
        ------
        Moved
            One of them is not present; nothing has changed.
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
    """Receiver of one incoming stream of segments."""

    def __init__(self, moves: Migration, generation: int) -> None:
        self._moves, self._generation = moves, generation

    def come(self, carried: SegmentState) -> None:
        """See `Migration.come`."""
        self._moves.come(carried, self._generation)

    def follow(self, deed: JournalRecord) -> None:
        """See `Migration.follow`."""
        self._moves.follow(deed)
