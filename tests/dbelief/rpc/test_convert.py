import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import ModelError, Refused
from dbelief.layout import Box, Layout, cut, place
from dbelief.placement import Place, Placement
from dbelief.pushes import Push, Pusher
from dbelief.rpc import convert, coordination_pb2
from dbelief.rpc import parameters_pb2 as parameters
from dbelief.rpc import segments_pb2 as segments

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
pushers = st.builds(Pusher, u32, u64, u32)
pushes = st.builds(
    Push,
    pusher=pushers,
    sequence=u64,
    rate=st.floats(width=32, allow_nan=False).map(np.float32),
    samples=u32,
    vector=st.sampled_from(["", "w", "best.0", "größer"]),
    assign=st.booleans(),
    clock=u64,
    base=st.none() | u64,
)
RULE = segments.Rule(name="momentum", options={"mu": 0.9})
TARGET = parameters.Target(job="digits", shard_epoch=3)


@given(pushers)
def test_a_pusher_comes_back(pusher: Pusher) -> None:
    assert convert.pusher_from_wire(convert.pusher_to_wire(pusher)) == pusher


@given(pushes)
def test_a_push_comes_back_from_its_bytes(push: Push) -> None:
    message = parameters.PushOpening.FromString(convert.push_to_wire(push, TARGET, RULE).SerializeToString())
    back = convert.push_from_wire(message)
    assert back == push
    assert back.rate.dtype == np.float32
    assert message.target == TARGET
    assert message.rule == (segments.Rule(name="assign") if push.assign else RULE)


def test_no_base_is_not_base_zero() -> None:
    for base in (None, 0, 7):
        push = Push(Pusher(1, 2), 1, base=base)
        assert convert.push_from_wire(convert.push_to_wire(push, TARGET, RULE)).base == base


@pytest.mark.parametrize(("codec", "dtype"), [(segments.CODEC_FP32, np.float32), (segments.CODEC_FP64, np.float64)])
def test_a_payload_is_read_where_it_lies(codec: segments.Codec.ValueType, dtype: type) -> None:
    values: np.ndarray = np.array([1.5, -2.0, 1e-30], dtype)
    message = segments.Segment(index=4, length=3, codec=codec, data=values.tobytes())
    read = convert.numbers(message)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, values)
    assert not read.flags.writeable
    assert read.base is not None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (segments.Segment(index=4, length=3, data=b"\0" * 11), "segment 4: 11 bytes are not 3 numbers of float32"),
        (segments.Segment(index=4, length=4, data=b"\0" * 12), "segment 4: 12 bytes are not 4 numbers of float32"),
        (segments.Segment(index=4, length=3), "segment 4: payload"),
        (segments.Segment(index=4, length=1, slot=segments.SharedSlot(block="b", length=4)), "segment 4: payload"),
        (segments.Segment(index=4, length=2, codec=segments.CODEC_FP16, data=b"\0" * 4), "segment 4: payload 2"),
        (segments.Segment(index=4, length=2, codec=segments.CODEC_BF16, data=b"\0" * 4), "segment 4: payload 3"),
    ],
)
def test_a_payload_that_cannot_be_read_is_refused(message: segments.Segment, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        convert.numbers(message)


def test_a_codec_of_a_later_version_is_refused() -> None:
    later = segments.Segment.FromString(
        segments.Segment(index=1, length=1, data=b"1234").SerializeToString() + b"\x28\x63"
    )
    assert later.codec == 99
    with pytest.raises(Refused, match="segment 1: payload 99"):
        convert.numbers(later)


@given(st.lists(st.integers(1, 3_000), max_size=4), st.integers(1, 5), u64)
def test_a_placement_comes_back_from_its_bytes(parts: list[int], shards: int, epoch: int) -> None:
    edges = np.cumsum([0, *parts]).tolist()
    spans = tuple(cut(itertools.pairwise(edges), 1_000))
    places = tuple(
        Place(shard, f"10.0.0.{shard}:7000", shard + 1, first, count)
        for shard, (first, count) in enumerate(place(spans, shards))
    )
    placement = Placement(epoch, spans, places)
    message = coordination_pb2.Placement.FromString(convert.placement_to_wire(placement).SerializeToString())
    back = convert.placement_from_wire(message)
    assert back == placement
    assert back.size == sum(parts)
    assert [span for place_ in back.places for span in back.run(place_)] == list(spans)


def test_a_layout_comes_back_and_keeps_its_digest() -> None:
    layout = Layout(
        (
            Box("w", (4, 6), 0, (0, 0), (4, 2)),
            Box("scale", (), 0, (), ()),
            Box("empty", (0, 2), 0, (0, 0), (0, 2)),
            Box("w", (4, 6), 1, (0, 2), (4, 6)),
        )
    )
    back = convert.layout_from_wire(convert.layout_to_wire(layout))
    assert back == layout
    assert back.digest() == layout.digest()


def test_a_tensor_without_a_box_is_whole() -> None:
    row = coordination_pb2.Tensor(name="w", shape=[2, 3])
    assert convert.layout_from_wire([row]) == Layout.of({"w": np.zeros((2, 3), np.float32)})


def test_a_box_of_the_wire_that_does_not_fit_is_refused() -> None:
    row = coordination_pb2.Tensor(name="w", shape=[2, 3], box_start=[0], box_stop=[2])
    with pytest.raises(ModelError, match="does not fit tensor 'w'"):
        convert.layout_from_wire([row])
