"""Hand-written codec of bulk messages: the protobuf encoding of those that hold segments, payloads in place.

These are `PushRequest`, `PushReply`, `PullReply` and `ExchangeReply`. They hold segments as field 2, references to
shared memory as field 7, and to rows there as field 8; a push has its opening as field 1, and its reply the
acknowledgement. So one writer and one reader serve all. The generated classes would copy a payload twice on each side.
Here a sender joins headers and payloads once, and a reader uses the numbers inside the message. The wire format is
plain protobuf all the same: the peer may use any generated client or server.

Messages of one kind may be concatenated: by protobuf's rules that is the message that holds all their segments.
Groups, which proto3 cannot write, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from dbelief.errors import Rejected
from dbelief.rpc.pb import segments_pb2 as segments

from .frames import Received

M = TypeVar("M", bound=Message)

FULL_BYTES = 1 << 20
"""Payload at which a message is full; a larger segment has a message of its own. A segment has at most this size."""
LONGEST_PAYLOAD = 16 << 20
"""Bytes of a payload in one message: a longer one, of rows of a table, is cut. A server accepts messages of 64 MiB."""
FULL_SHARED = 256
"""Maximum number of shared-memory segments in a message, and so of segments processed between two replies."""

DTYPES: dict[int, np.dtype[Any]] = {segments.CODEC_FP32: np.dtype("<f4"), segments.CODEC_FP64: np.dtype("<f8")}
"""Payload codecs that this version reads."""
CODECS: dict[np.dtype[Any], int] = {dtype: codec for codec, dtype in DTYPES.items()}

_HEAD, _SEGMENT, _SHARED, _ROWS = 1, 2, 7, 8
_INDEX, _VERSION, _OFFSET, _LENGTH, _CODEC, _UNCHANGED, _DATA, _MORE = range(1, 9)
_VARINT, _BYTES = _COUNTED = 0, 2
_FIXED = {1: 8, 5: 4}
"""Size in bytes of the field kinds that have a fixed size."""
_LONGEST_NUMBER = 8
"""Bytes of a number in any codec at most."""
_32_BITS, _64_BITS = (1 << 32) - 1, (1 << 64) - 1


@dataclass(slots=True)
class SegmentPayload:
    """A `Segment` message, see protos/segments.proto; where it is `shared`, one entry of `SharedSegments`.

    `data` is None where the message has no payload. `more`: it is cut, and goes on in the next one. `at`: of an entry
    of `SharedRows` the first number in shared memory; -1: it is none.
    """

    index: int = 0
    version: int = 0
    offset: int = 0
    length: int = 0
    codec: int = segments.CODEC_FP32
    unchanged: bool = False
    data: memoryview | None = None
    shared: bool = False
    more: bool = False
    at: int = -1


def numbers(part: SegmentPayload) -> np.ndarray:
    """Payload as an array over the message's own bytes: 1-D, read-only, at any alignment; no copy.

    Raises
    ------
    Rejected
        The codec is unknown, or the payload does not hold `length` numbers.
    """
    dtype = DTYPES.get(part.codec)
    if dtype is None or part.data is None:
        raise Rejected(f"segment {part.index}: payload {part.codec} is not one that is read here")
    if part.data.nbytes != part.length * dtype.itemsize:
        raise Rejected(f"segment {part.index}: {part.data.nbytes} bytes are not {part.length} numbers of {dtype.name}")
    return np.frombuffer(part.data, dtype)


# -- writing -------------------------------------------------------------------------------------------------


def part_of(index: int, version: int, values: np.ndarray) -> SegmentPayload:
    """A complete segment of (length,) contiguous float32 or float64 numbers, without a copy; or rows of a bucket."""
    data = values.data.cast("B") if len(values) else memoryview(b"")  # a view of no numbers cannot be cast
    return SegmentPayload(index, version, 0, len(values), CODECS[values.dtype], data=data)


def pieces(part: SegmentPayload) -> tuple[bytes, memoryview | bytes]:
    """Header and payload of a message with this one segment; joined they are the message."""
    inner = bytearray()
    for number, value in enumerate(
        (part.index, part.version, part.offset, part.length, part.codec, part.unchanged), _INDEX
    ):
        if value:
            inner.append(number << 3 | _VARINT)
            inner += _varint(value)
    if part.more:
        inner += bytes([_MORE << 3 | _VARINT, 1])
    if part.data is None:
        return _prefixed(_SEGMENT, len(inner)) + inner, b""
    inner += _prefixed(_DATA, part.data.nbytes)
    return _prefixed(_SEGMENT, len(inner) + part.data.nbytes) + inner, part.data


def encode(part: SegmentPayload) -> bytes:
    """Encode a message with this one segment. Cost: one copy of the payload."""
    return b"".join(pieces(part))


def cut(part: SegmentPayload) -> Iterator[SegmentPayload]:
    """The segment itself; of a payload above `LONGEST_PAYLOAD` the pieces of it, for a message each."""
    if part.data is None or part.data.nbytes <= LONGEST_PAYLOAD:
        yield part
        return
    for first in range(0, part.data.nbytes, LONGEST_PAYLOAD):
        stop = first + LONGEST_PAYLOAD
        yield replace(part, data=part.data[first:stop], more=stop < part.data.nbytes)


class PayloadJoiner:
    """Joins the pieces of payloads that `cut` has made, of one stream. Cost: a copy of these payloads."""

    def __init__(self) -> None:
        self._pieces: list[SegmentPayload] = []

    def whole(self, parts: list[SegmentPayload]) -> list[SegmentPayload]:
        """The segments that are complete with these of the next message, in their order.

        Raises
        ------
        Rejected
            A piece does not follow the one before it, or is more than the numbers of its segment can be encoded in.
        """
        if not self._pieces and True not in [part.more for part in parts]:
            return parts
        found = []
        for part in parts:
            if self._pieces or part.more:
                part = self._joined(part)
            if not self._pieces:
                found.append(part)
        return found

    def _joined(self, part: SegmentPayload) -> SegmentPayload:
        """The segment that a piece completes; while it completes none, it is kept."""
        first = self._pieces[0] if self._pieces else part
        self._pieces.append(part)
        data = [piece.data for piece in self._pieces if piece.data is not None]
        if replace(part, data=None, more=False) != replace(first, data=None, more=False) or part.data is None:
            raise Rejected(f"segment {part.index}: the payload of {first.index} is cut, and does not go on here")
        if sum(piece.nbytes for piece in data) > _LONGEST_NUMBER * part.length:
            raise Rejected(f"segment {part.index}: its pieces are longer than {part.length} numbers")
        if part.more:
            return part
        self._pieces = []
        return replace(part, data=memoryview(b"".join(data)))


def in_shared(indices: Iterable[int], versions: Iterable[int]) -> bytes:
    """Encode a message with references to these segments, and their versions, in shared memory."""
    message = segments.SharedSegments(segments=indices, versions=versions).SerializeToString()
    return _prefixed(_SHARED, len(message)) + message


def rows_in_shared(rows: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Encode a message with references to packed rows in shared memory: segment, version, first number, and length."""
    indices, versions, starts, lengths = zip(*rows, strict=True)
    reference = segments.SharedRows(segments=indices, versions=versions, starts=starts, lengths=lengths)
    message = reference.SerializeToString()
    return _prefixed(_ROWS, len(message)) + message


def head(message: bytes) -> bytes:
    """Encode the start of a message of a push, from its serialized opening, or of a reply, from the acknowledgement."""
    return _prefixed(_HEAD, len(message)) + message


def _prefixed(number: int, length: int) -> bytes:
    """Prefix of a length-delimited field."""
    return (number << 3 | _BYTES).to_bytes(1, "little") + _varint(length)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1, "little")
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


# -- reading -------------------------------------------------------------------------------------------------


def parse(kind: type[M], message: Received) -> M:
    """Parse a small message by its generated class.

    Raises
    ------
    Rejected
        The bytes are no such message.
    """
    try:
        return kind.FromString(bytes(message))
    except DecodeError:
        raise Rejected(f"{len(message)} bytes that are no {kind.__name__}") from None


def decode(message: Received) -> tuple[bytes | None, list[SegmentPayload]]:
    """Serialized opening of a push, or acknowledgement, None where the message has none; and the message's segments.

    References to shared memory are behind them, and those to rows there are last.

    Raises
    ------
    Rejected
        The bytes are no such message.
    """
    first: bytes | None = None
    parts = []
    shared = rows = b""
    view = memoryview(message)
    try:
        for number, kind, value, stop in _fields(message, 0, len(message)):
            if kind == _BYTES and number == _SEGMENT:
                parts.append(_part(message, view, value, stop))
            elif kind == _BYTES and number == _SHARED:
                shared += message[value:stop]
            elif kind == _BYTES and number == _ROWS:
                rows += message[value:stop]
            elif kind == _BYTES and number == _HEAD:  # by protobuf's rules, repeated openings are merged
                first = (first or b"") + message[value:stop]
    except (_Malformed, IndexError) as error:
        reason = error if isinstance(error, _Malformed) else "it ends within a field"
        raise Rejected(f"a message of {len(message)} bytes that cannot be read: {reason}") from None
    if shared:
        parts += _shared(shared)
    return first, parts + _shared_rows(rows) if rows else parts


class _Malformed(Exception):
    """Bytes that are no protobuf message."""


def _part(message: Received, view: memoryview, at: int, end: int) -> SegmentPayload:
    index = version = offset = length = codec = 0
    unchanged = more = False
    data: memoryview | None = None
    for number, kind, value, stop in _fields(message, at, end):
        if kind == _VARINT:
            if number == _INDEX:
                index = value & _32_BITS
            elif number == _VERSION:
                version = value
            elif number == _OFFSET:
                offset = value & _32_BITS
            elif number == _LENGTH:
                length = value & _32_BITS
            elif number == _CODEC:  # an enum is a signed number of 32 bits
                codec = ((value & _32_BITS) ^ 1 << 31) - (1 << 31)
            elif number == _UNCHANGED:
                unchanged = value != 0
            elif number == _MORE:
                more = value != 0
        elif kind == _BYTES and number == _DATA:
            data = view[value:stop]
    return SegmentPayload(index, version, offset, length, codec, unchanged, data, more=more)


def _shared(message: bytes) -> list[SegmentPayload]:
    reference = parse(segments.SharedSegments, message)
    if len(reference.segments) != len(reference.versions):
        raise Rejected(f"{len(reference.versions)} versions for {len(reference.segments)} segments in shared memory")
    return [SegmentPayload(*row, shared=True) for row in zip(reference.segments, reference.versions, strict=True)]


def _shared_rows(message: bytes) -> list[SegmentPayload]:
    reference = parse(segments.SharedRows, message)
    columns = reference.segments, reference.versions, reference.starts, reference.lengths
    if len(counts := {len(column) for column in columns}) > 1:
        raise Rejected(f"references to rows in shared memory with {min(counts)} to {max(counts)} entries each")
    return [
        SegmentPayload(index, version, length=length, shared=True, at=start)
        for index, version, start, length in zip(*columns, strict=True)
    ]


def _fields(message: Received, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, kind and value of every field in message[at:end], and its end; of bytes the value is their start.

    A field that extends past `end` is detected after it was read, so that reading it needs no checks.
    """
    while at < end:
        tag = message[at]
        at += 1
        if tag > 0x7F:
            tag, at = _long(message, at - 1)
        number, kind = tag >> 3, tag & 7
        if not number or tag > _32_BITS:
            raise _Malformed(f"no field has the tag {tag}")
        if kind in _FIXED:
            value = _FIXED[kind]
        elif kind in _COUNTED:
            value = message[at]
            at += 1
            if value > 0x7F:
                value, at = _long(message, at - 1)
        else:
            raise _Malformed(f"field {number} is of kind {kind}")
        if kind != _VARINT:
            value, at = at, at + value
        if at > end:
            raise _Malformed(f"field {number} goes past its end")
        yield number, kind, value, at


def _long(message: Received, at: int) -> tuple[int, int]:
    """A varint of any length, and its end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _64_BITS, at
    raise _Malformed("a number of more than 64 bits")
