"""Follower stream, leader's side: copies of the segments, then the journal records of later changes.

A segment is copied under its lock, and its changes are recorded from that moment; so its copy is sent before its first
record. Copies are sent one at a time between the records of other segments: training continues meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dbelief.errors import RuntimeFailure
from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import program_to_wire, push_to_wire

from ..store.journal import DropStagedRecord, ForgetRecord, JournalRecord, ProgramRecord, PushRecord
from ..store.shard import Shard
from .carry_stream import CarryStream
from .link import ReplicationLink
from .segment_state import capture
from .wire import encode

_LOOK_S = 0.5


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
        self._opening = wire.CarryOpening(job=job, shard_epoch=shard_epoch, follow=True, run_id=run_id)
        self._sent: deque[tuple[int, bool]] = deque()  # per message: records sent by then, whether all segments are
        self._records_sent = self.answered = 0

    def all(self) -> Iterator[bytes]:
        """All messages, until the link of this epoch ends."""
        try:
            yield self._noted(wire.CarryRequest(opening=self._opening).SerializeToString())
            left = deque(sorted(self._shard.segments))
            complete = False
            while (taken := self._link.take(self._epoch, bulk.FULL_BYTES, _LOOK_S if complete else 0.0)) is not None:
                yield from self._encoded(*taken)
                if self._link.behind:
                    continue  # the queue must not grow while segments are copied
                if left:
                    yield from self._segment(left.popleft())
                elif not complete:
                    complete = True
                    self._link.has_segments(self._epoch)
                    yield self._noted(b"", complete=True)
        except Exception as error:  # any failure: pushes wait on the link, which must report it
            self._link.lose(self._epoch, f"{type(error).__name__}: {error}")

    def _noted(self, message: bytes, complete: bool = False) -> bytes:
        self._sent.append((self._records_sent, complete))
        return message

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
        """Encode journal records in order; consecutive records of one push share a message."""
        self._records_sent = count - len(records)
        for _, group in groupby(records, _together):
            some = list(group)
            self._records_sent += len(some)
            first = some[0]
            yield self._noted(_pushed(some, self._rule) if isinstance(first, PushRecord) else _encode_record(first))

    def acknowledged(self, taken: int) -> None:
        """Record that the follower has the first `taken` messages."""
        records, complete = 0, False
        while self.answered < taken and self._sent:
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
        self._messages = messages
        self._stream = CarryStream(address, f"follower at {address}", patience_s, clock)
        self._stream.give(messages.all())
        self._stream.end()
        self._thread = runtime.spawn(self._read_acks, "follower")

    def close(self) -> None:
        """End the stream; called when the shard continues without this follower."""
        self._stream.cancel()
        self._thread.join()
        self._stream.close()

    def _read_acks(self) -> None:
        why = "it ended the stream"
        try:
            for taken in self._stream.replies(lambda: self._messages.answered if self._messages.waits else None):
                self._messages.acknowledged(taken)
        except RuntimeFailure as error:
            why = str(error)
        self._messages.lost(why)


def _together(record: JournalRecord) -> object:
    """Key that is equal for journal records that share a message."""
    return (record.push, record.exchange, record.skipped) if isinstance(record, PushRecord) else id(record)


def _pushed(records: Sequence[Any], rule: segments.Rule) -> bytes:
    """Encode the segments of one push as a message."""
    first: PushRecord = records[0]
    opening = push_to_wire(first.push, wire.Target(), rule, len(records))
    opening.exchange, opening.skipped = first.exchange, first.skipped
    pieces: list[bytes | memoryview] = [bulk.head(opening.SerializeToString())]
    for record in records:
        form = record.form or bulk.part_of(record.index, 0, record.values)
        index, version, offset, length = record.index, record.version, record.offset, len(record.values)
        pieces += bulk.pieces(bulk.SegmentPayload(index, version, offset, length, form.codec, data=form.data))
    return b"".join(pieces)


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
