"""Wire format of segments between two shards, encoded and decoded message by message; see protos/replication.proto."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from dbelief.core.absent import checked
from dbelief.core.layout import Kind, SegmentSpan
from dbelief.core.push import PARAMETERS, LedgerRow, Pusher
from dbelief.errors import Rejected
from dbelief.rpc.pb import parameters_pb2 as parameters
from dbelief.rpc.pb import replication_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk, payloads
from dbelief.rpc.wire.bulk import CODECS, DTYPES
from dbelief.rpc.wire.convert import (
    program_from_wire,
    push_from_wire,
    pusher_from_wire,
    pusher_to_wire,
    span_from_wire,
    span_to_wire,
)
from dbelief.rpc.wire.frames import Received

from ..store.accumulator import BundleAccumulator
from ..store.admission import MOST_CARRIED
from ..store.journal import DropStagedRecord, ForgetRecord, JournalRecord, ProgramRecord, PushRecord, RoundRecord
from ..store.segment import Staged
from .segment_state import SegmentState

_PIECE = 1 << 20
"""Numbers in a message; only rows of tables are longer: a message of gRPC has at most 64 MiB."""


def encode(carried: SegmentState) -> Iterator[bytes]:
    """Encode a segment: its head, then its arrays, a message each, or several. Cost: copies of one at a time."""
    arrays = list(_arrays(carried))
    messages = sum(max(1, -(-numbers.size // _PIECE)) for _, numbers in arrays)
    yield parameters.CarryRequest(head=_head(carried, messages)).SerializeToString()
    for message, numbers in arrays:
        message.codec = cast("segments.Codec.ValueType", CODECS[numbers.dtype])
        message.length = numbers.size if numbers.size > _PIECE else 0
        for first in range(0, max(1, numbers.size), _PIECE):
            message.offset, message.data = first, numbers[first : first + _PIECE].tobytes()
            yield parameters.CarryRequest(array=message).SerializeToString()


def _head(carried: SegmentState, arrays: int) -> wire.SegmentHead:
    span, total = carried.span, carried.sum
    head = wire.SegmentHead(
        span=span_to_wire(span),
        version=carried.version,
        born=carried.born,
        applied=carried.applied,
        rounds=carried.rounds,
        lost=carried.lost,
        filled=carried.filled,
        passed=carried.passed,
        sum=wire.BundleSum(number=total.number, added=sorted(total.added), next=total.next),
        arrays=arrays,
    )
    if carried.reported is not None:
        head.reported.SetInParent()
        head.reported.clocks.update(carried.reported)
    for (vector, pusher), row in carried.ledger.items():
        lost = carried.lost_of.get(pusher, 0) if vector == PARAMETERS else 0
        head.ledger.append(_row_to_wire(vector, pusher, row, lost))
    for (vector, pusher), (base, lost) in carried.based.items():
        head.based.add(vector=vector, pusher=pusher_to_wire(pusher), last=base, lost=lost)
    for start, stop, count in carried.missed:
        head.missed.add(start=start, stop=stop, count=count)
    return head


def _row_to_wire(vector: str, pusher: Pusher, row: LedgerRow, lost: int = 0) -> wire.SegmentLedgerRow:
    last, lease, position = row
    return wire.SegmentLedgerRow(
        vector=vector, pusher=pusher_to_wire(pusher), last=last, lost=lost, lease=lease, position=position
    )


def _row_from_wire(row: wire.SegmentLedgerRow) -> LedgerRow:
    return LedgerRow(row.last, row.lease, row.position)


def _arrays(carried: SegmentState) -> Iterator[tuple[wire.SegmentArray, np.ndarray]]:
    for name, numbers in carried.vectors.items():
        yield wire.SegmentArray(vector=name), numbers
    for name, numbers in carried.state.items():
        yield wire.SegmentArray(state=name), numbers
    for bundle, numbers in carried.sum.waiting.items():
        yield wire.SegmentArray(waiting=bundle), numbers
    for clock, round_ in carried.staged.items():
        for pusher, one in round_.items():
            about = wire.StagedGradient(
                clock=clock,
                pusher=pusher_to_wire(pusher),
                samples=one.samples,
                rate=float(one.rate),
                before=_row_to_wire(PARAMETERS, pusher, one.before),
                absent=one.absent,
            )
            yield wire.SegmentArray(staged=about), one.gradient
    for (pusher, sequence), (version, numbers) in carried.answers.items():
        asked = wire.CachedReply(pusher=pusher_to_wire(pusher), sequence=sequence, version=version)
        yield wire.SegmentArray(answer=asked), numbers


class Decoder:
    """Decoder that assembles segments from their messages."""

    def __init__(self) -> None:
        self._coming: SegmentState | None = None
        self._left = 0
        self._pieces: list[np.ndarray] = []  # of an array that is not complete

    @property
    def within(self) -> bool:
        """Whether a segment has begun and is incomplete."""
        return self._coming is not None

    def take(self, message: parameters.CarryRequest) -> SegmentState | None:
        """Decode the next message; returns the segment that it completes, else None.

        Raises
        ------
        Rejected
            The message cannot follow the previous one, or a field of it is invalid.
        """
        if message.HasField("head"):
            if self._coming is not None:
                raise Rejected(f"segment {self._coming.span.index} lacks {self._left} arrays")
            if message.head.arrays > MOST_CARRIED:
                raise Rejected(f"a segment of {message.head.arrays} arrays; {MOST_CARRIED} are the most")
            self._coming, self._left = _begun(message.head), message.head.arrays
        elif message.HasField("array"):
            if self._coming is None:
                raise Rejected("an array without a segment")
            if (numbers := self._whole(self._coming.span, message.array)) is not None:
                _add(self._coming, message.array, numbers)
            self._left -= 1
        if self._coming is None or self._left:
            return None
        carried, self._coming = self._coming, None
        return carried

    def _whole(self, span: SegmentSpan, message: wire.SegmentArray) -> np.ndarray | None:
        """An array, once all of its pieces are there."""
        numbers = _numbers(span, message)
        if message.length or self._pieces:
            if message.offset != sum(piece.size for piece in self._pieces):
                raise Rejected(f"segment {span.index}: a piece of an array that does not follow the one before it")
            self._pieces.append(numbers)
            if message.offset + numbers.size < message.length:
                return None
            numbers, self._pieces = np.concatenate(self._pieces), []
        return numbers


def _begun(head: wire.SegmentHead) -> SegmentState:
    if not head.span.length and head.span.kind != Kind.TABLE:
        raise Rejected(f"segment {head.span.index} has no numbers")
    return SegmentState(
        span=span_from_wire(head.span),
        version=head.version,
        born=head.born,
        applied=head.applied,
        rounds=head.rounds,
        lost=head.lost,
        lost_of={pusher_from_wire(row.pusher): row.lost for row in head.ledger if row.lost},
        filled=dict(head.filled),
        ledger={(row.vector, pusher_from_wire(row.pusher)): _row_from_wire(row) for row in head.ledger},
        based={(row.vector, pusher_from_wire(row.pusher)): (row.last, row.lost) for row in head.based},
        missed=tuple((row.start, row.stop, row.count) for row in head.missed),
        passed=dict(head.passed),
        reported=dict(head.reported.clocks) if head.HasField("reported") else None,
        sum=BundleAccumulator(head.sum.number, set(head.sum.added), next=max(1, head.sum.next)),
    )


def _add(carried: SegmentState, message: wire.SegmentArray, numbers: np.ndarray) -> None:
    """Store one array in the field that it belongs to."""
    what = message.WhichOneof("what")
    if what is None:
        raise Rejected(f"segment {carried.span.index}: an empty array")
    if what == "staged":
        about = message.staged
        round_ = carried.staged.setdefault(about.clock, {})
        before, rate = _row_from_wire(about.before), np.float32(about.rate)
        try:
            staged = Staged(numbers, about.samples, rate, before, checked(about.absent))
        except ValueError as error:
            raise Rejected(f"segment {carried.span.index}: a staged gradient with {error}") from None
        round_[pusher_from_wire(about.pusher)] = staged
    elif what == "answer":
        key: tuple[Pusher, int] = pusher_from_wire(message.answer.pusher), message.answer.sequence
        carried.answers[key] = message.answer.version, numbers
    else:
        into: Mapping[str, dict[Any, np.ndarray]] = {
            "vector": carried.vectors,
            "state": carried.state,
            "waiting": carried.sum.waiting,
        }
        into[what][getattr(message, what)] = numbers


def _numbers(span: SegmentSpan, message: wire.SegmentArray) -> np.ndarray:
    """(length,) writable numbers, of a bucket any count. Cost: a copy."""
    dtype = DTYPES.get(message.codec)
    size = len(message.data)
    if dtype is None or (size % dtype.itemsize if span.kind is Kind.TABLE else size != span.length * dtype.itemsize):
        raise Rejected(f"segment {span.index}: {len(message.data)} bytes are not its {span.length} numbers")
    return np.frombuffer(message.data, dtype).copy()


class Receiver(Protocol):
    """Receiver of segments, and of journal records that change them."""

    def receive(self, carried: SegmentState) -> None:
        """Receive a segment."""

    def apply(self, record: JournalRecord) -> None:
        """Apply a journal record to a received segment."""

    def span(self, index: int) -> SegmentSpan:
        """Span of a received segment."""


class Area(Protocol):
    """Numbers of a flat vector in shared memory."""

    def of(self, span: SegmentSpan) -> np.ndarray:
        """(length,) float32 numbers of a segment, in place."""


Areas = Callable[[segments.SharedArray], Area]


def _no_area(reference: segments.SharedArray) -> Area:
    raise Rejected(f"has no block {reference.block[:32]!r}")


Each = Callable[[Callable[[JournalRecord], None], Sequence[JournalRecord], int], object]
"""Calls a function with each record; the last argument is the bytes of all. See `ThreadPool.map`."""


def _in_order(apply: Callable[[JournalRecord], None], records: Sequence[JournalRecord], nbytes: int) -> None:
    for record in records:
        apply(record)


def receive(
    requests: Iterator[Received],
    begin: Callable[[parameters.CarryOpening], Receiver],
    areas: Areas = _no_area,
    each: Each = _in_order,
) -> Iterator[parameters.CarryReply]:
    """Receive one stream, and yield the count of received messages: in a follower stream after each, else at its end.

    Parameters
    ----------
    begin
        Called with the opening, returns the receiver.
    areas
        Finds numbers in the memory that the sender shares.
    each
        Applies the records of one message whose numbers are in that memory: each is of another segment.
    """
    receiver: Receiver | None = None
    reader, joiner, taken, follows = Decoder(), bulk.PayloadJoiner(), 0, False
    for message in requests:
        taken += 1
        begun, parts = bulk.decode(message)
        request = bulk.parse(parameters.CarryRequest, message) if begun is None else parameters.CarryRequest()
        if request.HasField("opening"):
            receiver, follows = begin(request.opening), request.opening.follow
        elif receiver is None:
            raise Rejected("a stream of segments begins with its opening")
        elif begun is not None or request.HasField("record"):
            if not follows:
                raise Rejected("a journal record for a shard that is no follower")
            if begun is None:
                receiver.apply(_record(request.record))
            else:
                parts = joiner.whole(parts)
                records = list(_push_records(begun, parts, receiver, areas))
                all_shared = all(part.shared for part in parts)
                (each if all_shared else _in_order)(receiver.apply, records, sum([record.nbytes for record in records]))
        elif (carried := reader.take(request)) is not None:
            receiver.receive(carried)
        if follows:
            yield parameters.CarryReply(received=taken)
    if reader.within:
        raise Rejected("the stream ended within a segment")
    if not follows:
        yield parameters.CarryReply(received=taken)


def _push_records(
    begun: bytes, parts: Sequence[bulk.SegmentPayload], receiver: Receiver, areas: Areas
) -> Iterator[JournalRecord]:
    opening = bulk.parse(parameters.PushOpening, begun)
    push = push_from_wire(opening)
    area = areas(opening.shared) if opening.HasField("shared") else None
    for part in parts:
        if part.shared and area is None:
            raise Rejected(f"segment {part.index}: lies in shared memory, and the opening does not say where")
        yield PushRecord(
            part.index,
            part.version,
            push,
            area.of(receiver.span(part.index))
            if part.shared and area is not None
            else payloads.pushed_numbers(part, push, receiver.span(part.index)),
            part.offset,
            exchange=opening.exchange,
            skipped=opening.skipped,
        )


def _record(message: parameters.JournalRecord) -> JournalRecord:
    what = message.WhichOneof("what")
    if what == "program":
        return ProgramRecord(message.segment, message.version, program_from_wire(message.program.operations))
    if what == "dropped":
        return DropStagedRecord(message.segment, message.version, frozenset(message.dropped.incarnations))
    if what == "forgotten":
        return ForgetRecord(message.segment, message.version, frozenset(message.forgotten.incarnations))
    if what == "round":
        return RoundRecord(message.segment, message.version)
    raise Rejected(f"segment {message.segment}: an empty journal record")
