import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import Box, Kind, Layout, assign_segments, make_segments
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import LedgerRow, Push, Pusher
from dbelief.errors import ModelError, Rejected
from dbelief.rpc.pb import coordination_pb2
from dbelief.rpc.pb import parameters_pb2 as parameters
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import convert

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
pushers = st.builds(Pusher, u32, u64, u32)
pushes = st.builds(
    Push,
    pusher=pushers,
    sequence=u64,
    rate=st.floats(0, width=32, allow_infinity=False).map(np.float32),
    samples=u32,
    vector=st.sampled_from(["", "w", "best.0", "größer"]),
    assign=st.booleans(),
    clock=u64,
    base=st.none() | u64,
    bundle=st.none() | u64,
    lease=u64,
    position=u64,
)
RULE = segments.Rule(name="momentum", options={"mu": 0.9})
TARGET = parameters.Target(job="digits", shard_epoch=3)


@given(pushes)
def test_push_round_trips_through_bytes(push: Push) -> None:
    message = parameters.PushOpening.FromString(convert.push_to_wire(push, TARGET, RULE).SerializeToString())
    back = convert.push_from_wire(message)
    assert back == push
    assert back.rate.dtype == np.float32
    assert message.target == TARGET
    assert message.rule == (segments.Rule(name="assign") if push.assign else RULE)


def test_lease_and_position_of_a_push_are_fields_of_its_opening() -> None:
    message = convert.push_to_wire(Push(Pusher(1, 2), 5, lease=3, position=32), TARGET, RULE)
    assert (message.lease, message.position) == (3, 32)
    assert convert.push_from_wire(message).row == LedgerRow(5, 3, 32)
    none = convert.push_from_wire(parameters.PushOpening(pusher=convert.pusher_to_wire(Pusher(1, 2)), sequence=5))
    assert none.row == LedgerRow(5), "of no lease"


def test_no_base_is_not_base_zero() -> None:
    for base in (None, 0, 7):
        push = Push(Pusher(1, 2), 1, base=base)
        assert convert.push_from_wire(convert.push_to_wire(push, TARGET, RULE)).base == base


@given(st.lists(st.integers(1, 3_000), max_size=4), st.integers(1, 5), u64)
def test_placement_round_trips_through_bytes(parts: list[int], shards: int, epoch: int) -> None:
    edges = np.cumsum([0, *parts]).tolist()
    spans = tuple(make_segments(itertools.pairwise(edges), 1_000))
    places = tuple(
        ShardPlacement(shard, f"10.0.0.{shard}:7000", shard + 1, (run,))
        for shard, run in enumerate(assign_segments(spans, shards))
    )
    placement = Placement(epoch, spans, places)
    message = coordination_pb2.Placement.FromString(convert.placement_to_wire(placement).SerializeToString())
    back = convert.placement_from_wire(message)
    assert back == placement
    assert back.size == sum(parts)
    assert [span for place_ in back.places for span in back.run(place_)] == list(spans)


def test_layout_round_trips_with_its_digest() -> None:
    layout = Layout(
        (
            Box("w", (4, 6), 0, (0, 0), (4, 2)),
            Box("scale", (), 0, (), (), ("factor",)),
            Box("empty", (0, 2), 0, (0, 0), (0, 2)),
            Box("w", (4, 6), 1, (0, 2), (4, 6)),
        )
    )
    back = convert.layout_from_wire(convert.layout_to_wire(layout))
    assert back == layout
    assert back.digest() == layout.digest()


def test_kinds_and_types_go_over_the_wire() -> None:
    tensors = {"w": np.zeros((2, 3)), "seen": np.zeros(()), "frozen": np.zeros(4)}
    kinds = {"seen": Kind.SUMMED, "frozen": Kind.FIXED}
    layout = Layout.of(tensors, kinds=kinds, dtypes={"seen": "int64", "frozen": "bfloat16"})
    rows = [coordination_pb2.Tensor.FromString(row.SerializeToString()) for row in convert.layout_to_wire(layout)]
    assert convert.layout_from_wire(rows) == layout
    placement = Placement(3, tuple(layout.segments(3)), (ShardPlacement(0, "10.0.0.1:7000", 1, ((0, 5),)),))
    back = convert.placement_from_wire(convert.placement_to_wire(placement))
    assert [span.kind for span in back.spans] == [Kind.TRAINED, Kind.TRAINED, Kind.SUMMED, Kind.FIXED, Kind.FIXED]


def test_tensor_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(Rejected, match="a tensor of kind 9, which is unknown"):
        convert.layout_from_wire([coordination_pb2.Tensor(name="w", shape=[2, 3], kind=9)])


def test_a_tensor_without_a_box_is_whole() -> None:
    row = coordination_pb2.Tensor(name="w", shape=[2, 3])
    assert convert.layout_from_wire([row]) == Layout.of({"w": np.zeros((2, 3), np.float32)})


def test_a_box_of_the_wire_that_does_not_fit_is_refused() -> None:
    row = coordination_pb2.Tensor(name="w", shape=[2, 3], box_start=[0], box_stop=[2])
    with pytest.raises(ModelError, match="does not fit tensor 'w'"):
        convert.layout_from_wire([row])
