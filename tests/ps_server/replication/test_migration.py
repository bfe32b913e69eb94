"""Migration of segments between shards with all their state: no push is lost or counted twice."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, runs_of
from dbelief.core.push import ACCRUED, LedgerRow, Push, Pusher
from dbelief.errors import Moved, Rejected
from dbelief.optim import make_rule
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import replication_pb2
from dbelief.rpc.pb import segments_pb2 as segments
from ps_server.replication.migration import Migration
from ps_server.replication.segment_state import SegmentState
from ps_server.replication.wire import Decoder, encode
from ps_server.store.segment import Outcome, Segment
from ps_server.store.shard import Shard
from tests.ps_server.packed import packed
from tests.ps_server.servers import A, B, Job, leased, status, wait_until

LENGTH = 5
SPANS = tuple(SegmentSpan(index, index * LENGTH, LENGTH) for index in range(3))
RULES = ("sgd", "adagrad", "adam", "elastic")


def over_the_wire(carried: SegmentState) -> SegmentState:
    """The same, by its bytes."""
    reader, whole = Decoder(), None
    for message in encode(carried):
        assert whole is None, "nothing follows the last array"
        whole = reader.take(wire.CarryRequest.FromString(message))
    assert whole is not None
    assert not reader.within
    return whole


def move(source: Shard, target: Shard, indices: list[int]) -> None:
    """Let segments go from one shard to another."""
    giver, taker = Migration(source), Migration(target)
    giver.send(indices, "the other", lambda carried: taker.receive(over_the_wire(carried)))
    taker.commit([*target.segments, *indices])
    giver.commit(list(source.segments))


class Pushers:
    """Two replicas that push, exchange and add bundles by drawn moves: what a shard is told does not depend on it."""

    def __init__(self, rule: str, staleness: int | None) -> None:
        self.rule, self.staleness = rule, staleness
        self.numbers = {A: 0, B: 0}
        self.rng = np.random.default_rng(5)

    def shard(self, spans: tuple[SegmentSpan, ...]) -> Shard:
        shard = Shard(spans, make_rule(self.rule, {}), self.staleness, ordered=True)
        shard.make_ready() if not spans else None
        shard.set_membership(1, [(0, [A.replica, B.replica])])
        return shard

    def ready(self) -> Shard:
        """A shard of all segments that holds zeros."""
        shard = self.shard(SPANS)
        for span in SPANS:
            shard.push(Push(Pusher(0, 1), 1, assign=True), span.index, np.zeros(LENGTH, np.float32))
        shard.make_ready()
        return shard

    def turn(self, pusher: Pusher, what: str, bundle: int) -> Callable[[Shard, int], Any]:
        """One act, to be done to each segment wherever it is."""
        values = self.rng.standard_normal((len(SPANS), LENGTH), dtype=np.float32)
        if what == "bundle":
            push = Push(pusher, 0, vector=ACCRUED, clock=1, bundle=bundle, packed=bundle % 2 == 0)
            return lambda shard, index: shard.push(push, index, packed(values[index]) if push.packed else values[index])
        self.numbers[pusher] += 1
        push = leased(Push(pusher, self.numbers[pusher], np.float32(0.25), samples=3, clock=self.numbers[pusher] - 1))
        if what == "push" and self.rule != "elastic":
            return lambda shard, index: shard.push(push, index, values[index], 0, 0)
        return lambda shard, index: shard.exchange(push, [(index, values[index])])[0][0]


def rows_before(segment: Segment) -> dict[int, dict[Pusher, LedgerRow]]:
    """The ledger rows before the staged gradients, by clock and pusher."""
    return {clock: {pusher: one.before for pusher, one in round_.items()} for clock, round_ in segment.staged.items()}


turns = st.lists(
    st.tuples(st.sampled_from([A, B]), st.sampled_from(["push", "exchange", "bundle"]), st.integers(1, 6)),
    min_size=1,
    max_size=12,
)


@given(turns, st.sampled_from(RULES), st.sampled_from([None, 0, 2]), st.data())
def test_migrated_segment_behaves_as_before(
    acts: list[tuple[Pusher, str, int]], rule: str, staleness: int | None, data: st.DataObject
) -> None:
    pushers = Pushers(rule, staleness)
    stays, one, other = pushers.shard(SPANS), pushers.shard(SPANS), pushers.shard(())
    start = np.linspace(-1, 1, LENGTH, dtype=np.float32)
    for shard in (stays, one):
        for span in SPANS:
            shard.push(Push(Pusher(0, 1), 1, assign=True), span.index, start)
        shard.make_ready()
    for pusher, what, bundle in acts:
        act = pushers.turn(pusher, what, bundle)
        for span in SPANS:
            if data.draw(st.booleans()):
                here, there = (one, other) if span.index in one.segments else (other, one)
                move(here, there, [span.index])
            holder = one if span.index in one.segments else other
            _assert_same(act(holder, span.index), act(stays, span.index))
    for index, expected in stays.segments.items():
        segment = (one if index in one.segments else other).segments[index]
        kept = ("version", "applied", "rounds", "ledger", "filled", "passed")
        assert {name: getattr(segment, name) for name in kept} == {name: getattr(expected, name) for name in kept}
        assert segment.vectors.keys() == expected.vectors.keys()
        for name, values in expected.vectors.items():
            np.testing.assert_array_equal(segment.vectors[name], values)
        for mine, his in zip(segment.state, expected.state, strict=True):
            np.testing.assert_array_equal(mine, his)
        assert sorted(segment.sum.waiting) == sorted(expected.sum.waiting)
        assert rows_before(segment) == rows_before(expected)
        assert segment.applied_ledger() == expected.applied_ledger()


def _assert_same(one: Any, other: Any) -> None:
    if isinstance(one, tuple) and isinstance(one[1], np.ndarray):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])
    else:
        assert one == other


def test_migrated_segment_repeats_exchange_answers() -> None:
    pushers = Pushers("elastic", None)
    one, other = pushers.ready(), pushers.shard(())
    push, weights = Push(A, 1, np.float32(0.5)), np.ones(LENGTH, np.float32)
    ((version, before),), _, _ = one.exchange(push, [(1, weights)])
    move(one, other, [1])
    ((again, same),), duplicates, _ = other.exchange(push, [(1, weights)])
    assert (again, duplicates) == (version, 1)
    np.testing.assert_array_equal(same, before)


def test_sent_segment_answers_moved_until_reverted() -> None:
    pushers = Pushers("sgd", None)
    shard = pushers.ready()
    moves, push = Migration(shard), Push(A, 1, np.float32(1.0))

    def breaks(carried: SegmentState) -> None:
        raise OSError("the other one is gone")

    with pytest.raises(OSError, match="gone"):
        moves.send([1, 2], "shard 7", breaks)
    with pytest.raises(Moved, match="segment 1: is at another shard now"):
        shard.push(push, 1, np.ones(LENGTH, np.float32))
    assert shard.push(push, 2, np.ones(LENGTH, np.float32)).outcome is Outcome.APPLIED, "it had not gone yet"
    with pytest.raises(Rejected, match="segment 9 is not on this shard, and cannot be sent to shard 7"):
        moves.send([0, 9], "shard 7", breaks)
    with pytest.raises(Moved, match="segment 8 is not here"):
        moves.commit([0, 1, 2, 8])
    moves.commit([0, 1, 2])
    assert shard.push(push, 1, np.ones(LENGTH, np.float32)).outcome is Outcome.APPLIED
    moves.commit([0, 2])
    with pytest.raises(Moved):
        shard.pull("w", 1)
    assert shard.size == 2 * LENGTH


@pytest.mark.parametrize("dropped", [False, True], ids=["on its way", "dropped"])
@pytest.mark.parametrize("what", ["push", "exchange", "pull"])
def test_call_between_lookup_and_lock_gets_moved(what: str, dropped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Pushers("sgd", None).ready()
    find = shard.segment
    gone: list[SegmentState] = []

    def finds_and_waits(index: int) -> Segment:
        segment = find(index)
        moves = Migration(shard)
        moves.send([index], "shard 7", gone.append)
        if dropped:
            moves.commit([1, 2])
        return segment

    monkeypatch.setattr(shard, "segment", finds_and_waits)
    push, ones = Push(A, 1, np.float32(1.0)), np.ones(LENGTH, np.float32)
    acts: dict[str, Callable[[], object]] = {
        "push": lambda: shard.push(push, 0, ones),
        "exchange": lambda: shard.exchange(push, [(0, ones)]),
        "pull": lambda: shard.pull("w", 0),
    }
    with pytest.raises(Moved, match="segment 0: is on its way to shard 7"):
        acts[what]()
    (carried,) = gone
    np.testing.assert_array_equal(carried.vectors["w"], 0.0)


def test_round_wait_ends_when_its_segment_migrates() -> None:
    pushers = Pushers("sgd", 0)
    shard = pushers.ready()
    shard.push(Push(A, 1, np.float32(1.0)), 0, np.ones(LENGTH, np.float32))
    heard: list[Exception] = []

    def waits() -> None:
        try:
            shard.wait_for_clock([0], 1, 60.0)
        except Moved as error:
            heard.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    wait_until(lambda: bool(shard.barrier._awaited))
    Migration(shard).send([0], "shard 7", lambda carried: None)
    thread.join(60)
    assert [str(error) for error in heard] in (
        ["segment 0: is on its way to shard 7"],
        ["segment 0: is at another shard now"],  # it ran again when that was over
    )


BAD = [
    ([wire.CarryRequest(array=replication_pb2.SegmentArray(vector="w"))], "an array without a segment"),
    ([wire.CarryRequest(head=replication_pb2.SegmentHead(arrays=1))], "segment 0 has no numbers"),
    (
        [wire.CarryRequest(head=replication_pb2.SegmentHead(span=segments.SegmentSpan(length=3), arrays=99_999))],
        "a segment of 99999 arrays; 16384 are the most",
    ),
    (
        [wire.CarryRequest(head=replication_pb2.SegmentHead(span=segments.SegmentSpan(length=3), arrays=1))] * 2,
        "segment 0 lacks 1 arrays",
    ),
    (
        [
            wire.CarryRequest(head=replication_pb2.SegmentHead(span=segments.SegmentSpan(length=3), arrays=1)),
            wire.CarryRequest(array=replication_pb2.SegmentArray(vector="w", data=b"12345678")),
        ],
        "segment 0: 8 bytes are not its 3 numbers",
    ),
    (
        [
            wire.CarryRequest(head=replication_pb2.SegmentHead(span=segments.SegmentSpan(length=3), arrays=1)),
            wire.CarryRequest(array=replication_pb2.SegmentArray(data=bytes(12))),
        ],
        "segment 0: an empty array",
    ),
]


@pytest.mark.parametrize(("wrong", "why"), BAD, ids=[why for _, why in BAD])
def test_messages_that_are_no_segments_are_refused(wrong: list[wire.CarryRequest], why: str) -> None:
    reader = Decoder()
    with pytest.raises(Rejected, match=why):
        list(map(reader.take, wrong))


# -- over gRPC -----------------------------------------------------------------------------------------------


def hold(job: Job, number: int, indices: list[int]) -> None:
    runs = [segments.SegmentRun(first=first, count=count) for first, count in runs_of(sorted(indices))]
    job.configure(number, holdings=wire.Holdings(runs=runs))


def give(job: Job, source: int, target: int, indices: list[int]) -> wire.GiveReply:
    where = job.placement.places[target]
    return job.stubs[source].Give(
        wire.GiveRequest(
            command=job.command(),
            target=wire.Target(job="digits", shard_epoch=job.placement.places[source].shard_epoch),
            segments=indices,
            address=where.address,
            shard_epoch=where.shard_epoch,
        )
    )


def moved(placement: Placement, source: int, target: int, indices: list[int]) -> Placement:
    held = {n: set(placement.places[n].segments) for n in range(2)}
    held[source] -= set(indices)
    held[target] |= set(indices)
    places = tuple(dataclasses.replace(p, runs=runs_of(sorted(held[p.shard]))) for p in placement.places)
    return dataclasses.replace(placement, epoch=placement.epoch + 1, places=places)


@pytest.mark.processes
def test_pushes_during_migration_count_once(job: Job) -> None:
    stop, pushed, another = threading.Event(), {A: 0, B: 0}, threading.Semaphore(0)

    def pushes(pusher: Pusher) -> None:
        client, versions, out = job.client(pusher, refresh=lambda: job.placement), job.held(0), job.full(np.nan)
        while not stop.is_set():
            number = pushed[pusher] + 1
            told = client.push(job.full(float(pusher.replica)), versions, Push(pusher, number, np.float32(1.0)))
            assert told.lost == 0
            pushed[pusher] = number
            another.release()
            client.pull(out, versions)

    threads = [threading.Thread(target=pushes, args=(pusher,)) for pusher in pushed]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(3)
    for turn in range(40):
        if turn % 4 == 0:
            assert another.acquire(timeout=60), "they come on meanwhile"
        source = int(rng.integers(2))
        held = list(job.placement.places[source].segments)
        going = sorted(rng.choice(held, min(len(held), 7), replace=False).tolist())
        assert give(job, source, 1 - source, going).bytes == sum(4 * job.placement.spans[i].length for i in going)
        after = moved(job.placement, source, 1 - source, going)
        hold(job, 1 - source, list(after.places[1 - source].segments))
        job.placement = after
        hold(job, source, list(after.places[source].segments))
    stop.set()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    total = -sum(pusher.replica * count for pusher, count in pushed.items())
    np.testing.assert_array_equal(job.read(), total)


@pytest.mark.processes
def test_a_shard_that_cannot_be_reached_is_given_nothing(job: Job) -> None:
    client = job.client(A)
    nowhere = dataclasses.replace(job.placement.places[1], address="127.0.0.1:1")
    whole = job.placement
    job.placement = dataclasses.replace(whole, places=(whole.places[0], nowhere))
    code, why = status(lambda: give(job, 0, 1, [0, 1]))
    assert code is grpc.StatusCode.ABORTED
    assert "carry: shard at 127.0.0.1:1" in why
    hold(job, 0, list(whole.places[0].segments))
    client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1.0)))
    job.placement = whole
    np.testing.assert_array_equal(job.read(), -1.0)


@pytest.mark.processes
def test_shard_refuses_ownership_of_missing_segments(job: Job) -> None:
    here = list(job.placement.places[0].segments)
    code, why = status(lambda: hold(job, 0, [*here, 39]))
    assert (code, "21" in why) == (grpc.StatusCode.ABORTED, True), why
    code, why = status(lambda: hold(job, 0, [*here[1:], 39]))
    assert (code, "segment 39 is not here" in why) == (grpc.StatusCode.ABORTED, True), why
    code, why = status(lambda: list(job.stubs[0].Carry(iter([wire.CarryRequest()]))))
    assert (code, "begins with its opening" in why) == (grpc.StatusCode.FAILED_PRECONDITION, True), why


@pytest.mark.processes
def test_losses_before_a_migration_are_reported_after_it(job: Job, tmp_path: Path) -> None:
    """Both between two pushes of one pusher, who knows the taking shard in the life that it has had all along."""
    client = job.client(A, refresh=lambda: job.placement)
    for sequence in (1, 2):
        client.push(job.full(1.0), job.held(0), Push(A, sequence, np.float32(1.0)))
        if sequence == 1:
            job.snapshot(tmp_path)
    job.restart(1, tmp_path)
    going = list(job.placement.places[1].segments)[:3]
    give(job, 1, 0, going)
    after = moved(job.placement, 1, 0, going)
    for number in (0, 1):
        hold(job, number, list(after.places[number].segments))
    job.placement = client.placement = after
    assert client.push(job.full(1.0), job.held(0), Push(A, 3, np.float32(1.0))).lost == 1
    versions = job.read().reshape(-1)
    spans = [after.spans[index] for index in going]
    assert all((versions[span.start : span.stop] == -2.0).all() for span in spans)
    first = after.spans[0]
    assert (versions[first.start : first.stop] == -3.0).all()
