"""Segments of the three kinds on one shard: the rule is applied to gradients, differences are added, or neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.layout import Kind, SegmentSpan
from dbelief.core.push import NO_PUSH, PARAMETERS, LedgerRow, Push, Pusher
from dbelief.errors import Rejected
from dbelief.optim import RULES, make_rule
from dbelief.optim.rules.add import ADD
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import replication_pb2
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire.convert import span_from_wire
from ps_server import snapshot
from ps_server.replication.link import ReplicationLink
from ps_server.replication.migration import Migration
from ps_server.replication.segment_state import SegmentState
from ps_server.replication.sender import FollowerMessages
from ps_server.replication.wire import Decoder, receive
from ps_server.store.segment import Outcome, Segment
from ps_server.store.shard import Shard
from tests.ps_server.replication.test_migration import move, over_the_wire

A, B = Pusher(1, 11), Pusher(2, 12)
SPANS = (
    SegmentSpan(0, 0, 4),
    SegmentSpan(1, 4, 2),
    SegmentSpan(2, 6, 3, Kind.SUMMED),
    SegmentSpan(3, 9, 2, Kind.FIXED),
    SegmentSpan(4, 11, 1, Kind.FIXED),
)
N = 12
TRAINED, SUMMED, FIXED = slice(0, 6), slice(6, 9), slice(9, 12)
START = np.linspace(-1, 1, N, dtype=np.float32)
RATE = np.float32(0.25)


def normal(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N, dtype=np.float32)


def send(shard: Shard, push: Push, values: np.ndarray) -> None:
    """Push to the shard's segments that replicas push to; assign to all of them."""
    for index, segment in list(shard.segments.items()):
        if push.assign or segment.span.kind is not Kind.FIXED:
            shard.push(push, index, values[segment.span.start : segment.span.stop])


def a_shard(rule: str = "sgd", staleness: int | None = None, spans: tuple[SegmentSpan, ...] = SPANS) -> Shard:
    shard = Shard(spans, make_rule(rule, {}), staleness)
    send(shard, Push(Pusher(0, 1), 1, assign=True), START)
    if spans:
        shard.make_ready()
    shard.set_membership(1, [(0, [A.replica, B.replica])])
    return shard


def numbers(*shards: Shard) -> np.ndarray:
    """The parameters of all segments, wherever they are."""
    out = np.full(N, np.nan, np.float32)
    for shard in shards:
        for index, segment in shard.segments.items():
            out[segment.span.start : segment.span.stop] = np.frombuffer(shard.pull(PARAMETERS, index)[1] or b"", "<f4")
    return out


@pytest.mark.parametrize("rule", RULES)
def test_differences_are_added_whatever_the_jobs_rule(rule: str) -> None:
    """Trained segments beside them get the rule's steps."""
    shard, formula, w = a_shard(rule), make_rule(rule, {}), START.copy()
    states = tuple(np.full(6, value, np.float32) for value in formula.state.values())
    for number in range(1, 5):
        values = normal(number)
        send(shard, Push((A, B)[number % 2], -(-number // 2), RATE), values)
        formula.apply_reference(np, w[TRAINED], values[TRAINED], states, RATE, number)
        w[SUMMED] += values[SUMMED]
        assert numbers(shard).tobytes() == w.tobytes()
    summed = shard.segments[2]
    assert (summed.rule, summed.state, summed.version) == (ADD, (), 4)
    assert len(shard.segments[0].state) == len(formula.state)


def test_repeated_difference_is_added_once() -> None:
    shard, ones = a_shard(), np.ones(N, np.float32)
    for _ in range(2):
        send(shard, Push(A, 1, RATE), ones)
    np.testing.assert_array_equal(numbers(shard)[SUMMED], START[SUMMED] + 1)
    assert shard.push(Push(A, 1, RATE), 2, ones[SUMMED]).outcome is Outcome.DUPLICATE


def test_a_rate_divided_by_staleness_scales_no_difference() -> None:
    shard = Shard(SPANS, make_rule("sgd", {}), staleness_aware=True)
    send(shard, Push(Pusher(0, 1), 1, assign=True), np.zeros(N, np.float32))
    shard.make_ready()
    for number in range(1, 4):  # the later ones are 1 and 2 versions late
        send(shard, Push(A, number, np.float32(1)), np.ones(N, np.float32))
    np.testing.assert_array_equal(numbers(shard)[TRAINED], -2.5)
    np.testing.assert_array_equal(numbers(shard)[SUMMED], 3)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_differences_of_a_round_are_averaged_by_samples(rule: str) -> None:
    shard, w = a_shard(rule, staleness=0), START.copy()
    for clock in range(3):
        first, second = normal(2 * clock), normal(2 * clock + 1)
        send(shard, Push(B, clock + 1, RATE, samples=1, clock=clock), second)
        assert numbers(shard)[SUMMED].tobytes() == w[SUMMED].tobytes(), "until all members have pushed"
        send(shard, Push(A, clock + 1, RATE, samples=3, clock=clock), first)
        mean = np.zeros(N, np.float32)
        for values, share in ((first, 0.75), (second, 0.25)):
            mean += values * np.float32(share)
        w[SUMMED] += mean[SUMMED]
        assert numbers(shard)[SUMMED].tobytes() == w[SUMMED].tobytes()
    np.testing.assert_array_equal(numbers(shard)[FIXED], START[FIXED])
    assert not np.array_equal(numbers(shard)[TRAINED], START[TRAINED])
    shard.wait_for_clock([0, 1, 2], 3, 0.0)  # what a replica fetches: no fixed segment holds it up


# -- fixed segments ------------------------------------------------------------------------------------------


def test_fixed_segments_are_assigned_as_others() -> None:
    shard = Shard(SPANS, make_rule("adam", {}))
    initial = Push(Pusher(0, 1), 1, assign=True)
    send(shard, initial, START)
    shard.push(Push(Pusher(0, 1), 1, vector="best.0", assign=True), 3, START[9:11])
    shard.make_ready()
    np.testing.assert_array_equal(numbers(shard), START)
    late = shard.push(Push(B, 1, assign=True), 3, np.zeros(2, np.float32))
    assert late.outcome is Outcome.DUPLICATE, "the first values stay"
    np.testing.assert_array_equal(numbers(shard)[FIXED], START[FIXED])
    np.testing.assert_array_equal(np.frombuffer(shard.pull("best.0", 3)[1] or b"", np.float32), START[9:11])


def test_without_fixed_segments_initial_values_are_incomplete() -> None:
    shard = Shard(SPANS, make_rule("sgd", {}))
    for index in range(3):
        span = SPANS[index]
        shard.push(Push(A, 1, assign=True), index, START[span.start : span.stop])
    with pytest.raises(Rejected, match=r"segment 3 has no initial values \(2 of 5 miss them\)"):
        shard.make_ready()


def test_ledgers_leave_fixed_segments_out() -> None:
    shard = a_shard()
    for number in (1, 2):
        send(shard, Push(A, number, RATE, lease=3, position=16 * number), normal(number))
    assert shard.ledgers()[PARAMETERS, A] == (LedgerRow(2, 3, 32),) * 2
    shard.push(Push(B, 1, RATE), 2, normal(0)[SUMMED])
    assert shard.ledgers()[PARAMETERS, B] == (NO_PUSH, LedgerRow(1)), "it has not reached the trained ones"


def test_shard_of_fixed_segments_has_no_ledgers() -> None:
    shard = a_shard(spans=SPANS[3:])
    shard.push(Push(A, 1, assign=True), 3, np.zeros(2, np.float32))
    assert shard.ledgers() == {}
    shard.fence([A.incarnation])
    shard.forget([A.incarnation])
    assert shard.ledgers() == {}


# -- kinds outlast every transfer ----------------------------------------------------------------------------


def test_row_of_an_earlier_version_is_trained() -> None:
    assert span_from_wire(segments.SegmentSpan(index=3, start=40, length=7)) == SegmentSpan(3, 40, 7, Kind.TRAINED)


def test_unknown_kind_is_refused() -> None:
    row = segments.SegmentSpan(index=3, start=40, length=7, kind=9)
    with pytest.raises(Rejected, match="a tensor of kind 9, which is unknown"):
        span_from_wire(row)
    with pytest.raises(Rejected, match="a tensor of kind 9, which is unknown"):
        Decoder().take(wire.CarryRequest(head=replication_pb2.SegmentHead(span=row, arrays=1)))


def contents(shard: Shard) -> dict[int, Any]:
    """What training changes, by segment."""
    return {
        index: (
            segment.span,
            segment.rule.name,
            {name: values.tobytes() for name, values in segment.vectors.items()},
            [values.tobytes() for values in segment.state],
            segment.applied,
            segment.ledger.last,
        )
        for index, segment in shard.segments.items()
    }


def trained(rule: str, pushes: int = 3) -> Shard:
    shard = a_shard(rule)
    for number in range(1, pushes + 1):
        send(shard, Push(A, number, RATE), normal(number))
    return shard


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("through", [over_the_wire, lambda carried: carried], ids=["by bytes", "as it is"])
def test_migrated_segments_keep_their_kind(rule: str, through: Callable[[SegmentState], SegmentState]) -> None:
    stays, source, target = trained(rule), trained(rule), a_shard(rule, spans=())
    giver, taker = Migration(source), Migration(target)
    giver.send([1, 2, 3], "the other", lambda carried: taker.receive(through(carried)))
    taker.commit([1, 2, 3])
    giver.commit([0, 4])
    target.make_ready()
    for shard in (stays, source, target):
        send(shard, Push(A, 4, RATE), normal(4))
    assert contents(source) | contents(target) == contents(stays)
    np.testing.assert_array_equal(numbers(source, target), numbers(stays))
    assert [segment.span.kind for segment in target.segments.values()] == [Kind.TRAINED, Kind.SUMMED, Kind.FIXED]
    assert target.ledgers()[PARAMETERS, A] == (LedgerRow(4), LedgerRow(4))


def test_summed_segment_migrates_with_a_round_that_waits() -> None:
    source, target = a_shard("adam", staleness=0), a_shard("adam", staleness=0, spans=())
    send(source, Push(A, 1, RATE, samples=3), np.full(N, 4, np.float32))
    move(source, target, [2])
    target.make_ready()
    target.push(Push(B, 1, RATE, samples=1), 2, np.full(3, 8, np.float32))
    np.testing.assert_array_equal(numbers(target)[SUMMED], START[SUMMED] + 5)


@pytest.mark.parametrize("staleness", [None, 0])
def test_follower_keeps_kinds_and_steps_as_its_leader(staleness: int | None) -> None:
    leader, follower = a_shard("adam", staleness), a_shard("adam", staleness, spans=())
    link, moves = ReplicationLink(), Migration(follower)
    link.begin(1, followed=True)
    messages = FollowerMessages(leader, link, "job", 7)
    answers = receive(messages.all(), lambda opening: moves)
    for number in range(1, 4):
        for pusher in (A, B):
            send(leader, Push(pusher, number, RATE, clock=number - 1), normal(number + pusher.replica))
        while not (link.confirmed and link._acknowledged == link.appended):
            next(answers)
            messages.acknowledged(1)
    link.begin(2, followed=False)
    copies: dict[int, Segment] = dict(moves._received)
    assert [copies[index].span for index in range(5)] == list(SPANS)
    for index, expected in leader.segments.items():
        assert copies[index].rule.name == expected.rule.name == ("adam" if index < 2 else "add")
        np.testing.assert_array_equal(copies[index].vectors[PARAMETERS], expected.vectors[PARAMETERS])
        assert len(copies[index].state) == len(expected.state)
    moves.promote(9)
    moves.commit(range(5))
    follower.make_ready()
    assert follower.ledgers()[PARAMETERS, A] == (LedgerRow(3), LedgerRow(3))


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_restored_shard_continues_with_its_kinds(rule: str, tmp_path: Path) -> None:
    """A set holds the rule's state for trained segments only."""
    old, new = trained(rule), Shard(SPANS, make_rule(rule, {}))
    snapshot.save(old, tmp_path, 0, "set", "job", shard_epoch=1)
    assert snapshot.restore(new, tmp_path, "set", "job", shard_epoch=2) == len(SPANS)
    for shard in (old, new):
        send(shard, Push(A, 4, RATE), normal(4))
    assert contents(new) == contents(old)
    assert new.ledgers()[PARAMETERS, A] == (LedgerRow(4), LedgerRow(4))
