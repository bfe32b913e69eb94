"""Hand-written and generated code must mean the same bytes."""

import itertools
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from dbelief.errors import Rejected
from dbelief.rpc.pb import parameters_pb2 as parameters
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.bulk import SegmentPayload

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
fields = {
    "index": u32,
    "version": u64,
    "offset": u32,
    "length": u32,
    "codec": st.integers(0, 3),
    "unchanged": st.booleans(),
    "more": st.booleans(),
}
payloads = st.none() | st.binary(max_size=300).map(lambda data: memoryview(data))
parts = st.builds(lambda data, **others: SegmentPayload(**others, data=data), payloads, **fields)
shared = st.lists(st.tuples(u32, u64), max_size=5)


def generated(part: SegmentPayload) -> segments.Segment:
    message = segments.Segment(**{name: getattr(part, name) for name in fields})
    if part.data is not None:
        message.data = bytes(part.data)
    return message


def plain(message: segments.Segment) -> SegmentPayload:
    part = SegmentPayload(**{name: getattr(message, name) for name in fields})
    if message.HasField("data"):
        part.data = memoryview(message.data)
    return part


def told(rows: list[tuple[int, int]]) -> segments.SharedSegments:
    return segments.SharedSegments(segments=[index for index, _ in rows], versions=[version for _, version in rows])


@given(st.lists(parts, max_size=4))
def test_our_encoding_equals_generated_code(several: list[SegmentPayload]) -> None:
    message = b"".join(itertools.chain.from_iterable(map(bulk.pieces, several)))
    assert message == b"".join(map(bulk.encode, several))
    for kind in (parameters.PullReply, parameters.PushRequest):
        wanted: Any = kind(segments=[generated(part) for part in several])
        assert kind.FromString(message) == wanted
        # A payload is last in a message, behind the field of the highest number.
        assert message == wanted.SerializeToString() or any(part.more for part in several)


@given(st.lists(shared, max_size=3), st.lists(parts, max_size=2))
def test_shared_segments_are_encoded_as_by_generated_code(
    messages: list[list[tuple[int, int]]], several: list[SegmentPayload]
) -> None:
    """Also where messages are laid end to end: segments of each kind in their order, those in shared memory last."""
    written = b"".join(
        bulk.in_shared(*zip(*rows, strict=True)) if rows else bulk.in_shared((), ()) for rows in messages
    )
    rows = list(itertools.chain.from_iterable(messages))
    for kind in (parameters.PullReply, parameters.PushRequest, parameters.ExchangeReply):
        assert kind.FromString(written).shared == told(rows)
    before = b"".join(map(bulk.encode, several))
    wanted = [*several, *(SegmentPayload(index, version, shared=True) for index, version in rows)]
    assert bulk.decode(before + written) == bulk.decode(written + before) == (None, wanted)


@pytest.mark.parametrize("versions", [0, 1, 3])
def test_segments_in_shared_memory_have_a_version_each(versions: int) -> None:
    message = parameters.PullReply(shared=segments.SharedSegments(segments=[4, 5], versions=[7] * versions))
    with pytest.raises(Rejected, match=f"{versions} versions for 2 segments in shared memory"):
        bulk.decode(message.SerializeToString())


@given(st.lists(parts, max_size=4), st.none() | st.binary(max_size=9))
def test_generated_encoding_is_read_by_our_code(several: list[SegmentPayload], vector: bytes | None) -> None:
    request = parameters.PushRequest(segments=[generated(part) for part in several])
    if vector is not None:
        request.opening.target.job = vector.hex()
    opening, read = bulk.decode(request.SerializeToString())
    assert read == several
    assert (opening is None) == (vector is None)
    if opening is not None:
        assert parameters.PushOpening.FromString(opening) == request.opening


def rows_of(lengths: list[int]) -> list[SegmentPayload]:
    rng = np.random.default_rng(len(lengths))
    return [bulk.part_of(index, 7, rng.random(n, np.float32)) for index, n in enumerate(lengths)]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 60), st.integers(1, 4))
def test_cut_payloads_are_joined(lengths: list[int], longest: int, together: int) -> None:
    """So many pieces in a message: of one segment, or of the next too."""
    with patch.object(bulk, "LONGEST_PAYLOAD", longest):
        pieces = [piece for part in rows_of(lengths) for piece in bulk.cut(part)]
    assert all(len(piece.data or b"") <= longest for piece in pieces)
    joiner, found = bulk.PayloadJoiner(), list[SegmentPayload]()
    for first in range(0, len(pieces), together):
        message = b"".join(map(bulk.encode, pieces[first : first + together]))
        found += joiner.whole(bulk.decode(message)[1])
    assert found == rows_of(lengths)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"index": 4}, "segment 4: the payload of 0 is cut, and does not go on here"),
        ({"length": 39}, "segment 0: the payload of 0 is cut"),
        ({"data": None}, "segment 0: the payload of 0 is cut"),
        ({"data": memoryview(bytes(400))}, "segment 0: its pieces are longer than 40 numbers"),
    ],
)
def test_pieces_that_do_not_follow_are_refused(change: dict[str, Any], match: str) -> None:
    with patch.object(bulk, "LONGEST_PAYLOAD", 100):
        first, last = bulk.cut(*rows_of([40]))
    joiner = bulk.PayloadJoiner()
    assert joiner.whole([first]) == []
    with pytest.raises(Rejected, match=match):
        joiner.whole([replace(last, **change)])


@given(st.binary(min_size=1, max_size=40), st.lists(parts, min_size=1, max_size=2))
def test_an_opening_is_written_and_read(job: bytes, several: list[SegmentPayload]) -> None:
    opening = parameters.PushOpening(target=parameters.Target(job=job.hex()), sequence=3)
    message = bulk.head(opening.SerializeToString()) + b"".join(map(bulk.encode, several))
    assert parameters.PushRequest.FromString(message).opening == opening
    assert bulk.decode(message) == (opening.SerializeToString(), several)


def varint(value: int) -> bytes:
    low, value = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(value) if value else bytes([low])


def field(number: int, kind: int, value: Any) -> bytes:
    before = varint(len(value)) if kind == 2 else b""
    return varint(number << 3 | kind) + before + (varint(value) if kind == 0 else bytes(value))


numbers_of_fields = st.integers(1, 12) | st.integers(1, 2**29 - 1)
any_field = st.one_of(
    st.builds(field, numbers_of_fields, st.just(0), u64),
    st.builds(field, numbers_of_fields, st.just(1), st.binary(min_size=8, max_size=8)),
    st.builds(field, numbers_of_fields, st.just(2), st.binary(max_size=20)),
    st.builds(field, numbers_of_fields, st.just(5), st.binary(min_size=4, max_size=4)),
)


@given(st.lists(any_field, max_size=12).map(b"".join), st.lists(any_field, max_size=3).map(b"".join))
@example(field(5, 0, 2**64 - 1) + field(7, 2, b"1") + field(8, 2, b"") + field(1, 5, b"1234"), b"")
def test_fields_in_any_order_are_read_as_by_generated_code(inner: bytes, outer: bytes) -> None:
    message = outer + field(2, 2, inner)
    try:
        wanted = parameters.PullReply.FromString(message)
    except DecodeError:  # a field that looks like a slot and is none
        with pytest.raises(Rejected):
            bulk.decode(message)
        return
    assert bulk.decode(message)[1] == [plain(segment) for segment in wanted.segments]


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda inner: field(2, 2, inner)))
@example(b"\x12")
@example(b"\x12\x05\x08")
@example(b"\x12\x02\x3a\x09")
@example(b"\x80" * 11)
@example(b"\x00\x00")
@example(b"\x13\x14")
def test_arbitrary_bytes_are_read_alike_or_refused(message: bytes) -> None:
    try:
        wanted = [plain(segment) for segment in parameters.PullReply.FromString(message).segments]
    except DecodeError:
        wanted = None
    try:
        _, read = bulk.decode(message)
    except Rejected:
        assert wanted is None or has_group(message)
    else:
        assert wanted in (None, read)


def has_group(message: bytes) -> bool:
    return any(byte & 7 in (3, 4) for byte in message)


@given(st.lists(parts, min_size=1, max_size=3), st.data())
def test_truncated_message_is_refused_or_ends_at_a_segment(several: list[SegmentPayload], data: st.DataObject) -> None:
    whole = [bulk.encode(part) for part in several]
    message = b"".join(whole)
    cut = data.draw(st.integers(0, len(message) - 1))
    edges = [0, *itertools.accumulate(map(len, whole))]
    if cut in edges:
        assert bulk.decode(message[:cut])[1] == several[: edges.index(cut)]
    else:
        with pytest.raises(Rejected, match="cannot be read"):
            bulk.decode(message[:cut])


# -- payloads ------------------------------------------------------------------------------------------------


def read(**fields: Any) -> SegmentPayload:
    """A segment as it comes out of a message."""
    (part,) = bulk.decode(parameters.PullReply(segments=[segments.Segment(**fields)]).SerializeToString())[1]
    return part


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_payload_is_read_where_it_lies(dtype: type) -> None:
    values: np.ndarray = np.array([1.5, -2.0, 1e-30], dtype)
    codec = bulk.CODECS[np.dtype(dtype)]
    found = bulk.numbers(read(index=4, length=3, codec=codec, data=values.tobytes()))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)
    assert not found.flags.writeable
    assert found.base is not None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"length": 3, "data": b"\0" * 11}, "segment 4: 11 bytes are not 3 numbers of float32"),
        ({"length": 4, "data": b"\0" * 12}, "segment 4: 12 bytes are not 4 numbers of float32"),
        ({"length": 3}, "segment 4: payload"),
        ({"length": 2, "codec": segments.CODEC_FP16, "data": b"\0" * 4}, "segment 4: payload 2"),
        ({"length": 2, "codec": segments.CODEC_BF16, "data": b"\0" * 4}, "segment 4: payload 3"),
        ({"length": 1, "codec": 99, "data": b"\0" * 4}, "segment 4: payload 99"),
    ],
)
def test_a_payload_that_cannot_be_read_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        bulk.numbers(read(index=4, **fields))
