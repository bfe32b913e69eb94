"""Follower stream, leader's side: copies of the segments, then the journal records of later changes.

A segment is copied under its lock, and its changes are recorded from that moment; so its copy is sent before its first
record. Copies are sent one at a time between the records of other segments: training continues meanwhile.

To a follower on this host, pushes of workers that share memory are sent as references, over a local stream. A message
takes another stream than the one before it only when the follower has all before it: so their order is one. The calls
that wait for the follower send over the local stream, and read its replies; gRPC's stream has threads for both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from dbelief.core.placement import ShardPlacement
from dbelief.errors import RuntimeFailure
from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime
from dbelief.rpc.channel import named_errors
from dbelief.rpc.client.socket_stream import SocketStream
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk, frames
from dbelief.rpc.wire.convert import program_to_wire, push_to_wire

from ..store.journal import DropStagedRecord, ForgetRecord, JournalRecord, ProgramRecord, PushRecord
from ..store.shard import Shard
from .carry_stream import CarryStream
from .follower_memory import FollowerMemory
from .link import ReplicationLink
from .segment_state import capture
from .wire import encode

_LOOK_S = 0.5
_UNREAD_S = 0.05
"""Wait for further records, in seconds, before the sender's thread reads acknowledgements that no call waits for."""
_WINDOW = 2
"""Unacknowledged messages of the local stream before the sender's thread waits: the records that come meanwhile are
sent as one message, whose segments the follower's threads share."""
_TAKEN_BYTES = 32 << 20
"""Most bytes of journal records that are encoded at a time: the follower applies them while the next ones are."""


class FollowerMessages:
    """Messages sent to a follower, and how many of them it has acknowledged.

    Parameters
    ----------
    job, shard_epoch, run_id
        The job's id; the incarnation that the follower must have; the run's id.

    Attributes
    ----------
    answered
        Messages that the follower has acknowledged.
    """

    def __init__(self, shard: Shard, link: ReplicationLink, job: str, shard_epoch: int, run_id: int = 0) -> None:
        self._shard = shard
        self._link = link
        self._epoch = link.epoch
        self._rule = segments.Rule(name=shard.rule.name)
        opening = wire.CarryOpening(job=job, shard_epoch=shard_epoch, follow=True, run_id=run_id)
        self.job, self.shard_epoch, self.run_id = job, shard_epoch, run_id
        self._opening = wire.CarryRequest(opening=opening).SerializeToString()
        self._sent: deque[tuple[int, bool]] = deque()  # per message: records sent by then, whether all segments are
        self._records_sent = self.answered = 0
        self._memory: FollowerMemory | None = None
        self._local: SocketStream | None = None
        self._goes_local = False  # the message before went over the local stream
        self._received = 0  # messages of the local stream that the follower has
        self._sending = runtime.lock()  # held while records are taken and sent: in the journal's order
        self._receiving = runtime.lock()
        self._handed_over: deque[bytes] = deque()  # by a waiting thread, for the stream's own

    def all(self, memory: FollowerMemory | None = None) -> Iterator[bytes]:
        """All messages, until the link of this epoch ends, but for those that are sent over the local stream.

        `memory`: of a follower that may be on this host.
        """
        self._memory = memory
        try:
            yield self._noted(self._opening)
            left = deque(sorted(self._shard.segments))
            complete = False
            while True:
                self._link.wait_for_records((_UNREAD_S if self._unread else _LOOK_S) if complete else 0.0)
                self._wait_for_window()
                with self._sending:
                    taken = self._send_queued()
                if taken is None:
                    return
                while self._handed_over:
                    yield self._handed_over.popleft()
                if self._link.behind:
                    continue  # the queue must not grow while segments are copied
                if left:
                    yield from self._segment(left.popleft())
                elif not complete:
                    complete = True
                    self._link.has_segments(self._epoch)
                    yield self._noted(b"", complete=True)
                elif self._unread and not taken:  # records that no call waits for, as that of a round
                    self._link.drain(self._epoch, self._records_sent, self)
        except Exception as error:  # any failure: pushes wait on the link, which must report it
            self._lose(error)

    def _wait_for_window(self) -> None:
        """Wait until fewer than `_WINDOW` messages of the local stream are unacknowledged."""
        try:
            records, _ = self._sent[-_WINDOW]
        except IndexError:  # acknowledged, perhaps just now by another thread
            return
        if self._goes_local:
            self._link.drain(self._epoch, records, self)

    def send(self) -> None:
        """Send the queued records: over the local stream by the calling thread, otherwise by the stream's own."""
        if self._goes_local and self._sending.acquire(blocking=False):
            try:
                self._send_queued()
            except Exception as error:  # as in `all`
                self._lose(error)
            finally:
                self._sending.release()
        if self._link.behind or self._handed_over:
            self._link.wake_sender()

    def _send_queued(self) -> int | None:
        """Send queued records over the local stream, or hand them to the thread of `all`; `_sending` is held.

        Returns
        -------
        int | None
            Records; None where the link has ended.
        """
        if (taken := self._link.take(self._epoch, _TAKEN_BYTES)) is None:
            return None
        self._handed_over.extend(self._encoded(*taken))
        return len(taken[0])

    def _lose(self, error: Exception) -> None:
        self.lost(f"{type(error).__name__}: {error}")

    @property
    def is_local(self) -> bool:
        """See `Sender`."""
        return self._goes_local

    def receive(self) -> None:
        """See `Sender`."""
        with self._receiving:
            try:
                why = self._receive()
            except RuntimeFailure as error:
                why = str(error)
        if why:
            self.lost(why)

    def _receive(self) -> str:
        """Read an acknowledgement; why there will be no further one, or ""."""
        if self._local is None:
            return "the local stream is closed"
        with named_errors("follower"):
            if not self._local.readable(_LOOK_S):
                return ""
            reply = self._local.answer()
        if reply is None:
            return "it ended the local stream"
        received = bulk.parse(wire.CarryReply, reply).received
        self.acknowledged(received - self._received)
        self._received = received
        return ""

    @property
    def _unread(self) -> bool:
        """Whether acknowledgements are to come over the local stream."""
        return self._goes_local and self.waits

    def close(self) -> None:
        """Close the local stream; threads that send or read return."""
        if (local := self._local) is not None:
            local.cancel()
            with self._sending, self._receiving:
                self._local, self._goes_local = None, False
                local.end()

    def _noted(self, message: bytes, complete: bool = False) -> bytes:
        self._sent.append((self._records_sent, complete))
        return message

    def _routed(self, message: bytes, before: int, whole: bool) -> Iterator[bytes]:
        """Send a message over the local stream, or yield it; `before`: journal records sent before it.

        `whole`: it is not one of several of a record, which take one stream.
        """
        fits = whole and len(message) < frames.LARGEST
        if self._local is not None and fits and (self._goes_local or not self._sent):
            self._local.post(self._noted(message))
            self._go_local()
            return
        if self._goes_local:
            self._link.drain(self._epoch, before, self)
            self._goes_local = False
        yield self._noted(message)

    def _open_local(self) -> None:
        """Open the local stream, unless it is open or messages are under way: its opening is counted as one."""
        if self._memory is None or self._local is not None or self._sent:
            return
        self._local = self._memory.open_stream()
        if self._local is not None:
            self._local.post(self._noted(self._opening))
            self._go_local()

    def _go_local(self) -> None:
        """Let waiting threads read acknowledgements, unless they do already."""
        if not self._goes_local:
            self._goes_local = True
            self._link.wake_waiting()

    def _segment(self, index: int) -> Iterator[bytes]:
        segment = self._shard.segments.get(index)
        if segment is None:
            return  # migrated to another shard: the commit of the migration ends this link
        with segment.lock:
            if not self._link.is_current(self._epoch):
                return  # its journal belongs to a newer link
            carried = capture(segment, None, self._shard.answers.for_segment(index), copy=True)
            segment.journal = self._link.append
        for message in encode(carried):
            yield self._noted(message)

    def _encoded(self, records: Sequence[JournalRecord], count: int) -> Iterator[bytes]:
        """Encode journal records in order; consecutive records of one push share a message, up to its size limit."""
        self._records_sent = count - len(records)
        for _, group in groupby(records, _together):
            some: list[Any] = list(group)
            reference = self._reference(some) if isinstance(some[0], PushRecord) else None
            if reference is not None:
                self._open_local()
            parts: Iterable[Sequence[Any]] = [some] if reference is not None else _up_to_full(some)
            for part in parts:
                before = self._records_sent
                pushed = isinstance(part[0], PushRecord)
                *pieces, last = _pushed(part, self._rule, reference) if pushed else [_encode_record(part[0])]
                for message in pieces:
                    yield from self._routed(message, before, whole=False)
                self._records_sent += len(part)
                yield from self._routed(last, before, whole=not pieces)
            if self._memory is not None and isinstance(some[0], ForgetRecord):
                self._memory.release()

    def _reference(self, records: Sequence[PushRecord]) -> segments.SharedArray | None:
        """Where the follower finds the numbers of all records, which are one array; None: they have to be sent."""
        if self._memory is None:
            return None
        places: list[tuple[int, int, PushRecord]] = []
        for one in records:
            segment = self._shard.segments.get(one.index)
            if segment is None or one.form is not None or not len(one.values) == segment.span.length > 0:
                return None  # it has migrated to another shard; or is encoded; or a part of a segment, or rows
            places.append((_address(one), segment.span.start, one))
        address, start, first = min(places, key=itemgetter(0))
        size = first.values.itemsize
        if any(at - address != size * (begin - start) for at, begin, _ in places):
            return None
        return self._memory.reference(first.values, start)

    def acknowledged(self, count: int) -> None:
        """Record that the follower has the next `count` messages."""
        records, complete = 0, False
        for _ in range(min(count, len(self._sent))):
            self.answered += 1
            records, last = self._sent.popleft()
            complete = complete or last
        self._link.acknowledged(self._epoch, records, complete)

    @property
    def waits(self) -> bool:
        """Whether a message was sent that is not acknowledged."""
        return bool(self._sent)

    def lost(self, why: str) -> None:
        """Record that the follower ended the stream, or is unreachable."""
        self._link.lose(self._epoch, why)


class FollowerSender:
    """Sender of a follower stream to the shard at an address, until it is closed, or the link or the follower ends it.

    A follower that has messages to acknowledge, and acknowledges none for `patience_s`, is treated as lost too.
    """

    def __init__(self, messages: FollowerMessages, address: str, patience_s: float, clock: Clock | None = None) -> None:
        self.messages = messages
        self._stream = CarryStream(address, f"follower at {address}", patience_s, clock)
        follower = ShardPlacement(-1, address, messages.shard_epoch, (), messages.run_id)
        self._memory = FollowerMemory(messages.job, follower, self._stream.streams, self._stream.watchdog)
        self._stream.give(messages.all(self._memory))
        self._stream.end()
        self._thread = runtime.spawn(self._read_acks, "follower")

    def close(self) -> None:
        """End the stream; called when the shard continues without this follower."""
        self._stream.cancel()
        self._thread.join()
        self.messages.close()
        self._memory.close()
        self._stream.close()

    def _read_acks(self) -> None:
        why, before = "it ended the stream", 0
        try:
            for received in self._stream.replies(lambda: self.messages.answered if self.messages.waits else None):
                self.messages.acknowledged(received - before)
                before = received
        except RuntimeFailure as error:
            why = str(error)
        self.messages.lost(why)


def _together(record: JournalRecord) -> object:
    """Key that is equal for journal records that share a message."""
    return (record.push, record.exchange, record.skipped) if isinstance(record, PushRecord) else id(record)


def _up_to_full(records: Sequence[JournalRecord]) -> Iterator[Sequence[JournalRecord]]:
    """Split records into groups with at most `bulk.FULL_BYTES` of numbers, at least one record each."""
    first = filled = 0
    for number, record in enumerate(records):
        if number > first and filled + record.nbytes > bulk.FULL_BYTES:
            yield records[first:number]
            first, filled = number, 0
        filled += record.nbytes
    yield records[first:]


def _pushed(
    records: Sequence[PushRecord], rule: segments.Rule, reference: segments.SharedArray | None
) -> Iterator[bytes]:
    """Encode the segments of one push as a message, or a long one as several, of which the last completes it.

    `reference`: where their numbers are, None: in the message.
    """
    first = records[0]
    opening = push_to_wire(first.push, wire.Target(), rule, len(records))
    opening.exchange, opening.skipped = first.exchange, first.skipped
    if reference is not None:
        opening.shared.CopyFrom(reference)
        numbers = bulk.in_shared([one.index for one in records], [one.version for one in records])
        yield bulk.head(opening.SerializeToString()) + numbers
        return
    head = bulk.head(opening.SerializeToString())
    pieces: list[bytes | memoryview] = [head]
    for part in chain.from_iterable(map(_portions, records)):
        pieces += bulk.pieces(part)
        if part.more:
            yield b"".join(pieces)
            pieces = [head]
    yield b"".join(pieces)


def _address(record: PushRecord) -> int:
    """Where the record's numbers are in memory."""
    address: int = record.values.__array_interface__["data"][0]
    return address


def _portions(record: PushRecord) -> Iterator[bulk.SegmentPayload]:
    """The numbers of a record, encoded, and cut where they are long."""
    form = record.form or bulk.part_of(record.index, 0, record.values)
    index, version, offset, length = record.index, record.version, record.offset, len(record.values)
    yield from bulk.cut(bulk.SegmentPayload(index, version, offset, length, form.codec, data=form.data))


def _encode_record(record: JournalRecord) -> bytes:
    message = wire.JournalRecord(segment=record.index, version=record.version)
    if isinstance(record, ProgramRecord):
        message.program.operations.extend(program_to_wire(record.program))
    elif isinstance(record, DropStagedRecord):
        message.dropped.incarnations.extend(sorted(record.incarnations))
    elif isinstance(record, ForgetRecord):
        message.forgotten.incarnations.extend(sorted(record.incarnations))
    else:
        message.round = True
    return wire.CarryRequest(record=message).SerializeToString()
