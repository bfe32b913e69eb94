"""Migration of segments to and from a shard, while it serves the others. Independent of the wire format.

A segment migrates in three steps, each of which may be repeated. *Sent*: no push is executing in it, later calls are
rejected with `Moved`, and its complete state is sent to the other shard. *Received*, but not served: if it were served
and the coordinator failed, two shards would own it. *Committed*: each of the two shards receives the list of segments
that it owns from now on, out of those it has. So exactly one of them serves the segment, and the other drops it.

Each `commit` begins a generation. A stream of segments belongs to the generation in which it was opened and ends with
it: the sending shard may have been suspended meanwhile, declared failed and replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dbelief.core.layout import SegmentSpan
from dbelief.errors import Moved, Rejected
from dbelief.process.runtime import runtime

from ..store.journal import JournalRecord
from ..store.segment import Segment
from ..store.shard import Shard
from .apply import apply, promote
from .segment_state import SegmentState, acquire_exclusive, capture, install


class Migration:
    """Migration state of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._sent: dict[int, Segment] = {}
        self._received: dict[int, Segment] = {}
        self._reported: dict[int, Mapping[int, int] | None] = {}
        self._generation = 0
        self._lock = runtime.lock()  # guards the generation, and the segments received in it

    def send(self, indices: Sequence[int], where: str, send: Callable[[SegmentState], None]) -> int:
        """Send segments to another shard, one after another; returns the bytes of numbers sent.

        Raises
        ------
        Rejected
            This shard does not own one of them; none has been sent.
        Exception
            What `send` raised: the segments passed to it are served by neither shard until the next `commit`.
        """
        missing = sorted(set(indices) - self._shard.segments.keys() - self._sent.keys())
        if missing:
            raise Rejected(f"segment {missing[0]} is not on this shard, and cannot be sent to {where}")
        sent = 0
        for index in indices:
            carried = self._stop_serving(index, where)
            send(carried)
            sent += carried.nbytes
        return sent

    def _stop_serving(self, index: int, where: str) -> SegmentState:
        """Stop serving a segment and capture its state; a segment whose transfer failed before is captured again."""
        shard = self._shard
        segment = self._sent.get(index) or shard.segments[index]
        acquire_exclusive(segment)
        try:
            segment.moved_to = f"is on its way to {where}"
            carried = capture(segment, shard.barrier.passed_clocks(index), shard.answers.for_segment(index), copy=False)
        finally:
            segment.lock.release()
        self._sent[index] = segment
        shard.set_segments({i: one for i, one in shard.segments.items() if i != index}, {})
        return carried

    def arrival(self) -> Arrival:
        """Receiver of one incoming stream of segments, valid until the next `commit`."""
        return Arrival(self, self._generation)

    def receive(self, carried: SegmentState, generation: int | None = None) -> None:
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
        shard, index = self._shard, carried.span.index
        with self._lock:
            if generation not in (None, self._generation):
                raise Moved(f"segment {index}: the stream that brings it is of an earlier move")
            if index in shard.segments:
                raise Rejected(f"segment {index} is on this shard already")
            segment = shard.make(carried.span)
            with segment.lock:
                install(carried, segment)
            shard.answers.import_segment(index, carried.answers)
            self._received[index], self._reported[index] = segment, carried.reported
            shard.elsewhere.add(index)  # not served yet: a call for it must be retried

    def apply(self, record: JournalRecord) -> None:
        """Apply a leader's journal record to a segment that was received and is not served yet.

        Raises
        ------
        Rejected
            The segment was not received, or its version differs from the leader's.
        """
        apply(self._shard, self._segment(record.index), record)

    def span(self, index: int) -> SegmentSpan:
        """Span of a segment that was received and is not served yet.

        Raises
        ------
        Rejected
            It was not received.
        """
        return self._segment(index).span

    def _segment(self, index: int) -> Segment:
        try:
            return self._received[index]
        except KeyError:
            raise Rejected(f"segment {index}: a journal record for a segment that was not received") from None

    def promote(self, shard_epoch: int) -> None:
        """Prepare the received segments for promotion: this shard will own them in this incarnation."""
        for segment in self._received.values():
            promote(segment, shard_epoch)
        self._reported = {index: {} for index in self._received}

    @property
    def most(self) -> int:
        """Number of segments present: received, sent or served."""
        return len(self._received) + len(self._sent) + len(self._shard.segments)

    def commit(self, indices: Collection[int]) -> None:
        """Serve these segments from now on, and drop all others.

        Raises
        ------
        Moved
            One of them is not present; nothing has changed.
        """
        shard = self._shard
        with self._lock:
            had = {**self._received, **self._sent, **shard.segments}
            missing = sorted(set(indices) - had.keys())
            if missing:
                raise Moved(f"segment {missing[0]} is not here, and cannot be held ({len(missing)} are not)")
            held = {index: had[index] for index in indices}
            for index, segment in had.items():
                with segment.lock:
                    segment.moved_to = "" if index in held else segment.moved_to or "is at another shard now"
            shard.set_segments(held, {index: clocks for index, clocks in self._reported.items() if index in held})
            shard.barrier.drop_migrated()
            for table in (self._sent, self._received, self._reported):
                table.clear()
            self._generation += 1

    def end(self) -> None:
        """Refuse the rest of every stream: the process gets another assignment.

        A leader that only seemed to have failed would have its records acknowledged otherwise, by copies that the
        shard that replaced it does not have.
        """
        with self._lock:
            for table in (self._sent, self._received, self._reported):
                table.clear()
            self._generation += 1


class Arrival:
    """Receiver of one incoming stream of segments."""

    def __init__(self, migration: Migration, generation: int) -> None:
        self._migration, self._generation = migration, generation

    def receive(self, carried: SegmentState) -> None:
        """See `Migration.receive`."""
        self._migration.receive(carried, self._generation)

    def apply(self, record: JournalRecord) -> None:
        """See `Migration.apply`."""
        self._migration.apply(record)

    def span(self, index: int) -> SegmentSpan:
        """See `Migration.span`."""
        return self._migration.span(index)
