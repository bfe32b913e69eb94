"""Pushes in which some numbers took no part: values and state stay, counts of steps outlast every transfer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.codec import Codec
from dbelief.codec.bfloat16 import BFloat16
from dbelief.codec.float16 import Float16
from dbelief.codec.one_bit import OneBit
from dbelief.codec.threshold import Threshold
from dbelief.codec.top_k import TopK
from dbelief.core.absent import EVERYTHING, Ranges, joined
from dbelief.core.layout import Kind, SegmentSpan
from dbelief.core.push import PARAMETERS, LedgerRow, Push, Pusher
from dbelief.errors import Rejected
from dbelief.optim import RULES, apply_rule, make_rule
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import push_from_wire, push_to_wire
from dbelief.rpc.wire.payloads import Codecs, Payloads, form_of, pushed_numbers
from ps_server import snapshot
from ps_server.replication.link import ReplicationLink
from ps_server.replication.migration import Migration
from ps_server.replication.sender import FollowerMessages
from ps_server.replication.wire import receive
from ps_server.store.segment import Outcome, Segment
from ps_server.store.shard import Shard
from tests.examples import examples
from tests.ps_server.replication.test_migration import move
from tests.ps_server.servers import Job

A, B = Pusher(1, 11), Pusher(2, 12)
SPANS = (SegmentSpan(0, 0, 5), SegmentSpan(1, 5, 3), SegmentSpan(2, 8, 4), SegmentSpan(3, 12, 2, Kind.SUMMED))
TRAINED, N = 12, 14
RATE = np.float32(0.25)
START = np.linspace(-1, 1, N, dtype=np.float32)
PARTS: tuple[Ranges, ...] = ((), (3, 9), (0, 5, 6, 7), (2, 12), EVERYTHING, (0, 2, 10, 12), ())
"""Ranges that are absent in one push after another."""


def named(codec: Codec | None) -> str:
    return "fp32" if codec is None else codec.name


def normal(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N, dtype=np.float32)


def options(rule: str) -> dict[str, float]:
    return {"weight_decay": 0.1} if rule not in ("adagrad", "adam", "ftrl") else {}


def a_shard(rule: str = "adamw", staleness: int | None = None, spans: tuple[SegmentSpan, ...] = SPANS) -> Shard:
    shard = Shard(spans, make_rule(rule, options(rule)), staleness)
    send(shard, Push(Pusher(0, 1), 1, assign=True), START)
    if spans:
        shard.make_ready()
    shard.set_membership(1, [(0, [A.replica, B.replica])])
    return shard


def send(shard: Shard, push: Push, values: np.ndarray) -> list[Outcome]:
    segments = list(shard.segments.values())
    return [shard.push(push, s.span.index, values[s.span.start : s.span.stop]).outcome for s in segments]


def trained(rule: str = "adamw", pushes: int = len(PARTS)) -> Shard:
    shard = a_shard(rule)
    for number, absent in enumerate(PARTS[:pushes], start=1):
        send(shard, Push(A, number, RATE, absent=absent), normal(number))
    return shard


def contents(shard: Shard) -> dict[int, Any]:
    return {
        index: (
            {name: values.tobytes() for name, values in segment.vectors.items()},
            [values.tobytes() for values in segment.state],
            segment.applied,
            segment.missed,
            segment.ledger.last,
        )
        for index, segment in shard.segments.items()
    }


def numbers(*shards: Shard) -> np.ndarray:
    parts = {index: segment.vectors[PARAMETERS] for shard in shards for index, segment in shard.segments.items()}
    return np.concatenate([parts[index] for index in sorted(parts)])


def number_by_number(rule: str, took: list[np.ndarray], gradients: list[np.ndarray]) -> np.ndarray:
    """What the rule makes of each trained number alone."""
    formula, w = make_rule(rule, options(rule)), START[:TRAINED].copy()
    states = tuple(np.full(TRAINED, value, np.float32) for value in formula.state.values())
    made = [0] * TRAINED
    for here, gradient in zip(took, gradients, strict=True):
        for at in np.flatnonzero(here[:TRAINED]):
            own = slice(at, at + 1)
            made[at] += 1
            apply_rule(formula, w[own], gradient[own], tuple(state[own] for state in states), RATE, made[at])
    return w


masks = st.lists(st.lists(st.booleans(), min_size=TRAINED, max_size=TRAINED), min_size=1, max_size=6)


@examples(100)
@given(masks, st.sampled_from(RULES), st.booleans())
def test_each_number_gets_the_steps_that_it_took_part_in(steps: list[list[bool]], rule: str, everything: bool) -> None:
    shard, gradients = a_shard(rule), [normal(number) for number in range(len(steps))]
    took = [np.array(row) for row in steps]
    for number, (here, gradient) in enumerate(zip(took, gradients, strict=True), start=1):
        absent = joined((at, at + 1) for at in np.flatnonzero(~here).tolist())
        absent = EVERYTHING if everything and not here.any() else absent
        assert send(shard, Push(A, number, RATE, absent=absent), gradient) == [Outcome.APPLIED] * 4
    assert numbers(shard)[:TRAINED].tobytes() == number_by_number(rule, took, gradients).tobytes()
    np.testing.assert_allclose(numbers(shard)[TRAINED:], (START + np.sum(gradients, axis=0))[TRAINED:], atol=1e-5)
    assert shard.versions() == [len(steps)] * 4, "also where nothing took part"
    assert shard.ledgers()[PARAMETERS, A] == (LedgerRow(len(steps)),) * 2


def test_repeated_push_is_counted_once() -> None:
    shard = trained(pushes=3)
    before = contents(shard)
    assert send(shard, Push(A, 3, RATE, absent=PARTS[2]), normal(3)) == [Outcome.DUPLICATE] * 4
    assert contents(shard) == before


def test_usual_pushes_keep_no_counts() -> None:
    shard = trained("sgd")
    assert [segment.missed for segment in shard.segments.values()] == [()] * 4
    send(adam := a_shard("adam"), Push(A, 1, RATE, absent=EVERYTHING), normal(1))
    assert [(segment.applied, segment.missed) for segment in adam.segments.values()] == [(0, ())] * 3 + [(1, ())]


# -- rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("order", [(A, B), (B, A)], ids=["A first", "B first"])
def test_a_number_is_absent_from_a_round_where_no_push_has_it(rule: str, order: tuple[Pusher, Pusher]) -> None:
    """Where some took part, the absent ones count as 0, and with all their samples."""
    shard, samples, gradients, took = a_shard(rule, staleness=0), {A: 3, B: 1}, [], []
    absents: list[dict[Pusher, Ranges]] = [{A: (0, 7), B: (2, 10)}, {A: (), B: (4, 6)}, {A: (0, 7), B: (0, 7)}]
    for clock, absent in enumerate(absents):
        values = {A: normal(2 * clock), B: normal(2 * clock + 1)}
        for pusher in order:
            push = Push(pusher, clock + 1, RATE, samples[pusher], clock=clock, absent=absent[pusher])
            assert send(shard, push, values[pusher]) == [Outcome.STAGED] * 4
        here = {pusher: np.ones(N, bool) for pusher in order}
        for pusher in order:
            for start, stop in zip(absent[pusher][::2], absent[pusher][1::2], strict=True):
                here[pusher][start:stop] = False
        mean = np.zeros(N, np.float32)
        for pusher in (A, B):
            mean += np.where(here[pusher], values[pusher], np.float32(0)) * np.float32(samples[pusher] / 4)
        gradients.append(mean)
        took.append(here[A] | here[B])
    assert numbers(shard)[:TRAINED].tobytes() == number_by_number(rule, took, gradients).tobytes()


def test_samples_without_any_gradient_are_not_in_the_mean() -> None:
    """But buffers were changed by them."""
    shard = a_shard("sgd", staleness=0)
    send(shard, Push(A, 1, RATE, 3, absent=EVERYTHING), np.full(N, 8, np.float32))
    send(shard, Push(B, 1, RATE, 1), np.full(N, 4, np.float32))
    decayed = START - RATE * (np.float32(4) + np.float32(0.1) * START)
    np.testing.assert_array_equal(numbers(shard)[:TRAINED], decayed[:TRAINED])
    np.testing.assert_array_equal(numbers(shard)[TRAINED:], START[TRAINED:] + 7)


@pytest.mark.parametrize("rule", ["adamw", "momentum"])
def test_a_round_without_any_gradient_applies_nothing(rule: str) -> None:
    shard = a_shard(rule, staleness=0)
    for clock in range(2):
        for pusher in (A, B):
            send(shard, Push(pusher, clock + 1, RATE, 5, clock=clock, absent=EVERYTHING), normal(1))
    np.testing.assert_array_equal(numbers(shard)[:TRAINED], START[:TRAINED])
    assert [segment.applied for segment in shard.segments.values()] == [0, 0, 0, 2]
    shard.wait_for_clock(range(4), 2, 0.0)  # the clock has advanced
    assert shard.ledgers()[PARAMETERS, B] == (LedgerRow(2), LedgerRow(2))


# -- transfers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pushes", [3, 5, 6])
def test_restored_shard_continues_with_its_counts(pushes: int, tmp_path: Path) -> None:
    old, new = trained(pushes=pushes), Shard(SPANS, make_rule("adamw", options("adamw")))
    snapshot.save(old, tmp_path, 0, "set", "job", shard_epoch=1)
    snapshot.restore(new, tmp_path, "set", "job", shard_epoch=2)
    assert contents(new) == contents(old)
    for number in range(pushes, len(PARTS)):
        for shard in (old, new):
            send(shard, Push(A, number + 1, RATE, absent=PARTS[number]), normal(number))
    assert contents(new) == contents(old)


def test_set_begun_before_a_push_holds_the_counts_before_it() -> None:
    shard = trained(pushes=3)
    segment = shard.segments[1]
    segment.begin_snapshot()
    missed = segment.missed
    send(shard, Push(A, 4, RATE, absent=(6, 8)), normal(4))
    assert segment.snapshot_view is not None
    assert segment.snapshot_view.stored.missed == missed != segment.missed


def test_migrated_segments_keep_their_counts() -> None:
    stays, source, target = trained(pushes=3), trained(pushes=3), a_shard(spans=())
    move(source, target, [1, 2])
    target.make_ready()
    for number in range(3, len(PARTS)):
        for shard in (stays, source, target):
            send(shard, Push(A, number + 1, RATE, absent=PARTS[number]), normal(number))
    assert contents(source) | contents(target) == contents(stays)


@pytest.mark.parametrize("absent", [(0, 6), EVERYTHING])
def test_round_that_waits_migrates_with_its_absent_numbers(absent: Ranges) -> None:
    stays, source, target = (a_shard(staleness=0, spans=spans) for spans in (SPANS, SPANS, ()))
    for shard in (stays, source):
        send(shard, Push(A, 1, RATE, 3, absent=absent), normal(1))
    move(source, target, [1, 3])
    target.make_ready()
    for shard in (stays, source, target):
        send(shard, Push(B, 1, RATE, 1, absent=(0, 6)), normal(2))
    assert contents(source) | contents(target) == contents(stays)


@pytest.mark.parametrize("staleness", [None, 0])
def test_follower_steps_as_its_leader(staleness: int | None) -> None:
    leader, follower = a_shard(staleness=staleness), a_shard(staleness=staleness, spans=())
    link, moves = ReplicationLink(), Migration(follower)
    link.begin(1, followed=True)
    messages = FollowerMessages(leader, link, "job", 7)
    answers = receive(messages.all(), lambda opening: moves)
    for number, absent in enumerate(PARTS, start=1):
        for pusher, own in ((A, absent), (B, PARTS[-number])):
            send(leader, Push(pusher, number, RATE, clock=number - 1, absent=own), normal(number + pusher.replica))
        while not (link.confirmed and link._acknowledged == link.appended):
            next(answers)
            messages.acknowledged(1)
    link.begin(2, followed=False)
    copies: dict[int, Segment] = dict(moves._received)
    for index, expected in leader.segments.items():
        assert copies[index].vectors[PARAMETERS].tobytes() == expected.vectors[PARAMETERS].tobytes()
        assert (copies[index].applied, copies[index].missed) == (expected.applied, expected.missed)
    assert any(segment.missed for segment in leader.segments.values())


# -- messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", PARTS)
def test_ranges_travel_in_the_opening(absent: Ranges) -> None:
    push = Push(A, 3, RATE, 5, absent=absent)
    opening = push_to_wire(push, wire.Target(), wire.PushOpening().rule, 4)
    assert push_from_wire(wire.PushOpening.FromString(opening.SerializeToString())) == push


@pytest.mark.parametrize(("fields", "why"), [
    ({"absent": [3, 3]}, r"^a push with 2 numbers that are no rising starts and stops of ranges"),
    ({"absent": [3]}, r"^a push with 1 numbers that are no"),
    ({"absent": [3, 4], "rule": {"name": "assign"}}, "^numbers that took no part, in a push that is not by a rule$"),
    ({"absent": [3, 4], "bundle": 1}, "^numbers that took no part, in a push that is not by a rule$"),
], ids=["not rising", "odd", "assignment", "bundle"])  # fmt: skip
def test_bad_ranges_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Rejected, match=why):
        push_from_wire(wire.PushOpening(rate=1, **fields))


@pytest.mark.parametrize("codec", [None, Float16(), BFloat16(), OneBit(), Threshold(0.5)], ids=named)
def test_segment_that_is_absent_as_a_whole_has_no_payload(codec: Codec | None) -> None:
    left = np.full(N, 0.125, np.float32)
    payloads = Payloads(codec, left if codec is not None and codec.keeps else None, absent=(4, 8))
    part = payloads.part(SPANS[1], 7, np.zeros(3, np.float32))
    assert part is not None
    _, (read,) = bulk.decode(bulk.encode(part))
    assert (read.index, read.version, read.length, read.data) == (1, 7, 3, None)
    assert form_of(read) is read, "a follower gets it as short"
    np.testing.assert_array_equal(pushed_numbers(read, Push(A, 1, absent=(4, 8)), SPANS[1]), np.zeros(3))
    with pytest.raises(Rejected, match="payload 0 is not one that is read here"):
        pushed_numbers(read, Push(A, 1, absent=(4, 7)), SPANS[1])
    np.testing.assert_array_equal(left, 0.125)


@pytest.mark.parametrize("codec", [OneBit(), Threshold(0.5), TopK(0.3)], ids=lambda codec: codec.name)
def test_residual_of_absent_numbers_stays(codec: Codec) -> None:
    """And that of the others is what it is without them; an aborted push restores it."""
    left = np.array([0.3, -0.2, 0.7, -0.9, 0.4], np.float32)
    before, values = left.copy(), np.array([0.5, 0.1, 0, 0, -0.6], np.float32)
    payloads = Payloads(codec, left, starts=(0, 2, 4), absent=(2, 4))
    part = payloads.part(SPANS[0], 0, values)
    assert part is not None
    assert part.data is not None
    np.testing.assert_array_equal(left[2:4], before[2:4])
    sent = np.empty(5, np.float32)
    codec.decode(part.data, sent)
    np.testing.assert_array_equal(sent[2:4], 0)
    others = [0, 1, 4]
    np.testing.assert_allclose((sent + left)[others], (values + before)[others], atol=1e-6)
    payloads.restore_residual([SPANS[0]])
    np.testing.assert_array_equal(left[2:4], before[2:4])
    np.testing.assert_allclose(left[others], (values + before)[others], atol=1e-6)


@pytest.mark.processes
@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize("codec", [None, BFloat16(), OneBit()], ids=named)
def test_a_client_pushes_to_shards(start: Callable[..., Job], codec: Codec | None, shares_memory: bool) -> None:
    """Whichever way the numbers travel, absent ones stay, and what is received is less by what is not sent."""
    job = start(rule="adam")
    client = job.client(A, codecs=Codecs(codec), shares_memory=shares_memory)
    gradient = client.array(job.placement.size)
    gradient[:] = 1
    client.push(gradient, job.held(0), Push(A, 1, RATE))
    before, sent = job.read(), client.sent
    gradient[4:100] = 0
    client.push(gradient, job.held(1), Push(A, 2, RATE, absent=(4, 100)))
    after = job.read()
    np.testing.assert_array_equal(after[4:100], before[4:100])
    assert np.all(after[:4] < before[:4])
    assert np.all(after[100:] < before[100:])
    if client.sent:
        assert client.sent - sent < sent
    many = tuple(range(4, 300))  # more than a packet of a local stream is to hold, in the shortest form
    client.push(gradient, job.held(2), Push(A, 3, RATE, absent=many + tuple(range(400, 4400))))
    np.testing.assert_array_equal(job.read()[4:300:2], after[4:300:2])
    assert np.all(job.read()[300:] < after[300:])


@pytest.mark.processes
def test_an_exchange_has_no_absent_weights(start: Callable[..., Job]) -> None:
    job = start(rule="elastic")
    weights, out = job.full(1.0), job.full(0.0)
    with pytest.raises(Rejected, match="an exchange moves all weights, and its opening says that some took no part"):
        job.client(A).exchange(weights, out, job.held(0), Push(A, 1, RATE, absent=(0, 4)))
