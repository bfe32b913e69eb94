"""A shard and the one that follows it: the same numbers there, and nothing acknowledged that it lacks."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import ACCRUED, Push, Pusher
from dbelief.core.vector_program import Operation
from dbelief.errors import Moved, Rejected
from dbelief.optim import make_rule
from dbelief.process.clock import ManualClock
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import parameters_pb2_grpc as stubs
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.channel import open_channel
from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from ps_server.programs import ProgramExecutor
from ps_server.replication.link import MOST_QUEUED, LinkState, ReplicationLink
from ps_server.replication.migration import Migration
from ps_server.replication.sender import FollowerSender, FollowerStream
from ps_server.replication.wire import receive
from ps_server.rpc.servicer import ShardService
from ps_server.store.journal import JournalRecord, PushRecord, RoundRecord
from ps_server.store.shard import Shard
from tests.ps_server.servers import A, B, Job, status, wait_until

LENGTH = 5
SPANS = tuple(SegmentSpan(index, index * LENGTH, LENGTH) for index in range(3))
RULES = ("sgd", "adagrad", "adam", "elastic")
KEPT = ("version", "applied", "rounds", "ledger", "filled")


def a_shard(rule: str, staleness: int | None, spans: tuple[SegmentSpan, ...], aware: bool = False) -> Shard:
    shard = Shard(spans, make_rule(rule, {}), staleness, staleness_aware=aware, ordered=True)
    for span in spans:
        shard.push(Push(Pusher(0, 1), 1, assign=True), span.index, np.linspace(-1, 1, LENGTH, dtype=np.float32))
    if spans:
        shard.make_ready()
        shard.set_membership(1, [(0, [A.replica, B.replica])])
    return shard


class Pair:
    """A shard and its follower in one process: what one sends, the other takes in."""

    def __init__(self, rule: str, staleness: int | None, aware: bool = False) -> None:
        self.leader = a_shard(rule, staleness, SPANS, aware)
        self.follower = a_shard(rule, staleness, ())
        self.programs = ProgramExecutor(self.leader)
        self.chain = ReplicationLink()
        self.moves = Migration(self.follower)

    def begin(self) -> None:
        """The follower follows; its stream goes on bit by bit, by `flow`."""
        for segment in self.leader.segments.values():
            segment.journal = None
        self.chain.begin(self.chain.epoch + 1, followed=True)
        telling = FollowerStream(self.leader, self.chain, "job", 7)

        def sent() -> Iterator[bytes]:
            for message in telling.messages():
                yield bytes(message)

        self._answers = receive(sent(), lambda opening: self.moves)
        self._telling = telling

    def flow(self, messages: int) -> None:
        """So many more messages arrive, and are answered; fewer where there are no more."""
        for _ in range(messages):
            if not self.waits:
                return
            self._telling.acknowledged(next(self._answers).taken)

    @property
    def waits(self) -> bool:
        """Whether there is something that the follower has not."""
        return not (self.chain.confirmed and self.chain._acknowledged == self.chain._told)

    def settle(self) -> None:
        """All that is told arrives."""
        while self.waits:
            self.flow(1)

    def close(self) -> None:
        self.programs.close()
        self.chain.begin(self.chain.epoch + 1, followed=False)


kinds = st.sampled_from(["push", "exchange", "bundle", "program", "fence", "late", "flow"])


@given(st.lists(st.tuples(kinds, st.sampled_from([A, B]), st.integers(1, 6)), max_size=16), st.data())
def test_a_follower_holds_what_its_leader_does(acts: list[tuple[str, Pusher, int]], data: st.DataObject) -> None:
    rule, staleness = data.draw(st.sampled_from(RULES)), data.draw(st.sampled_from([None, 0, 2]))
    pair = Pair(rule, staleness, aware=staleness is None and data.draw(st.booleans()))
    rng, numbers, fenced = np.random.default_rng(1), {A: 0, B: 0}, set[int]()
    joins = data.draw(st.integers(0, len(acts)))
    try:
        for turn, (what, pusher, number) in enumerate(acts):
            if turn == joins:
                pair.begin()
            if what == "flow" and turn > joins:
                pair.flow(4 * number)
            elif what == "program":
                program = [Operation("copy", ("d", "w")), Operation("scale", ("d",), (0.5,))]
                pair.programs.run([*program, Operation("rotate", ("d", "e"))] if number % 2 else program)
            elif what == "late":  # initial values that came too late are counted, and not used
                numbers_of_late = Push(Pusher(9, 90 + turn), 1, assign=True)
                pair.leader.push(numbers_of_late, number % 3, np.ones(LENGTH, np.float32))
            elif what == "fence" and number == 1:
                fenced.add(pusher.incarnation)
                pair.leader.fence([pusher.incarnation])
            elif what == "fence" and number == 2:
                pair.leader.forget(fenced)
            elif what in ("push", "exchange", "bundle") and pusher.incarnation not in fenced:
                _push(pair.leader, what, pusher, numbers, number, rng, rule)
        if joins == len(acts):
            pair.begin()
        pair.settle()
        _assert_equal(pair.leader, {index: pair.moves._come[index] for index in pair.leader.segments})
        for index in pair.leader.segments:
            assert pair.follower.answers.for_segment(index).keys() == pair.leader.answers.for_segment(index).keys()
    finally:
        pair.close()


def _push(
    shard: Shard, what: str, pusher: Pusher, numbers: dict[Pusher, int], bundle: int, rng: Any, rule: str
) -> None:
    values = rng.standard_normal((len(SPANS), LENGTH), dtype=np.float32)
    if what == "bundle":
        for span in SPANS:
            shard.push(Push(pusher, 0, vector=ACCRUED, clock=1, bundle=bundle), span.index, values[span.index])
        return
    numbers[pusher] += 1
    push = Push(pusher, numbers[pusher], np.float32(0.25), samples=3, clock=numbers[pusher] - 1)
    if rule == "elastic" or what == "exchange":
        shard.exchange(push, [(span.index, values[span.index]) for span in SPANS])
        return
    for span in SPANS:
        shard.push(push, span.index, values[span.index])


def _assert_equal(leader: Shard, there: Any) -> None:
    for index, expected in leader.segments.items():
        segment = there[index]
        assert {name: getattr(segment, name) for name in KEPT} == {name: getattr(expected, name) for name in KEPT}
        assert segment.vectors.keys() == expected.vectors.keys()
        for name, values in expected.vectors.items():
            np.testing.assert_array_equal(segment.vectors[name], values)
        for mine, his in zip(segment.state, expected.state, strict=True):
            np.testing.assert_array_equal(mine, his)
        assert {c: sorted(r) for c, r in segment.staged.items()} == {c: sorted(r) for c, r in expected.staged.items()}
        assert sorted(segment.sum.waiting) == sorted(expected.sum.waiting)


def test_a_promoted_follower_answers_an_exchange_again_as_its_leader_did() -> None:
    pair = Pair("elastic", None)
    pair.begin()
    push, weights = Push(A, 1, np.float32(0.5)), np.full(LENGTH, 3.0, np.float32)
    answers, _, _ = pair.leader.exchange(push, [(span.index, weights) for span in SPANS])
    pair.settle()
    pair.moves.promote(9)
    pair.moves.commit(range(3))
    pair.follower.make_ready()
    again, duplicates, lost = pair.follower.exchange(push, [(span.index, weights) for span in SPANS])
    assert (duplicates, lost) == (3, 0)
    for (version, before), (same, values) in zip(answers, again, strict=True):
        assert version == same
        np.testing.assert_array_equal(before, values)
    pair.close()


def test_a_round_that_was_not_applied_waits_at_the_promoted_for_the_others() -> None:
    pair = Pair("sgd", 0)
    pair.begin()
    ones = np.ones(LENGTH, np.float32)
    first = Push(A, 1, np.float32(1.0))
    pair.leader.push(first, 0, ones)
    pair.settle()
    pair.moves.promote(9)
    pair.moves.commit(range(3))
    pair.follower.make_ready()
    pair.follower.set_membership(1, [(0, [A.replica, B.replica])])
    before = pair.follower.pull("w", 0)[1]
    pair.follower.push(first, 0, ones)
    pair.follower.push(Push(B, 1, np.float32(1.0)), 0, 3 * ones)
    assert before is not None
    np.testing.assert_array_equal(
        pair.follower.segments[0].vectors["w"], np.frombuffer(before, np.float32) - np.float32(2.0)
    )
    pair.close()


def test_what_a_dead_life_had_waiting_for_a_round_is_dropped_there_too() -> None:
    pair = Pair("sgd", 0)
    pair.begin()
    pair.settle()
    pair.leader.push(Push(A, 1, np.float32(1.0)), 0, np.ones(LENGTH, np.float32))
    pair.leader.push(Push(B, 1, np.float32(1.0)), 1, np.ones(LENGTH, np.float32))
    pair.leader.fence([A.incarnation])
    pair.settle()
    _assert_equal(pair.leader, pair.moves._come)
    assert not pair.moves._come[0].staged
    pair.close()


def test_nothing_is_kept_there_of_lives_that_are_forgotten() -> None:
    pair = Pair("elastic", None)
    pair.begin()
    weights = np.ones(LENGTH, np.float32)
    for pusher in (A, B):
        pair.leader.exchange(Push(pusher, 1, np.float32(0.5)), [(span.index, weights) for span in SPANS])
    pair.settle()
    assert pair.follower.answers.for_segment(1).keys() == {(A, 1), (B, 1)}
    pair.leader.fence([A.incarnation])
    pair.leader.forget([A.incarnation])
    pair.settle()
    assert pair.follower.answers.for_segment(1).keys() == {(B, 1)}
    for segment in pair.moves._come.values():
        assert {pusher for _, pusher in segment.ledger.last} == {Pusher(0, 1), B}
        assert {pusher for _, pusher in segment.ledger.bases} == {Pusher(0, 1), B}
    pair.close()


def test_a_deed_that_is_not_the_next_one_is_refused() -> None:
    pair = Pair("sgd", None)
    pair.begin()
    pair.settle()
    pair.moves._come[1].version += 1
    pair.leader.push(Push(A, 1, np.float32(1.0)), 1, np.ones(LENGTH, np.float32))
    with pytest.raises(Rejected, match="segment 1: version 1 here, and 0 where it leads"):
        pair.flow(1)
    pair.close()


def test_what_is_waited_for_depends_on_how_it_stands() -> None:
    chain, deed = ReplicationLink(), _deed()
    chain.wait(0.0)
    chain.begin(1, followed=True)
    chain.append(deed)
    chain.wait(0.0)  # it catches up: nobody counts on it
    chain.has_segments(1)
    with pytest.raises(Moved, match="which has not heard of it yet"):
        chain.wait(0.0)
    assert chain.take(1, 100, 0.0) == ([deed], 1)
    chain.acknowledged(1, 1, whole=True)
    chain.wait(0.0)
    assert chain.confirmed
    chain.append(deed)
    chain.lose(1, "its cable was cut")
    with pytest.raises(Moved, match="which was lost: its cable was cut"):
        chain.wait(0.0)
    assert (chain.link, chain.confirmed, chain.take(1, 100, 0.0)) == (LinkState.LOST, False, None)
    chain.begin(2, followed=False)
    chain.wait(0.0)
    chain.lose(1, "what was said of the one before")
    assert (chain.link, chain.why) == (LinkState.ALONE, "")


def test_a_follower_is_counted_on_when_it_has_what_waited_as_the_last_segment_left() -> None:
    chain, deed = ReplicationLink(), _deed()
    chain.begin(1, followed=True)
    for _ in range(3):
        chain.append(deed)
    assert chain.take(1, 0, 0.0) == ([deed, deed, deed], 3)
    chain.append(deed)
    chain.has_segments(1)
    chain.acknowledged(1, 3, whole=True)
    assert not chain.confirmed, "a push that was acknowledged still waits to be told"
    chain.acknowledged(1, 4, whole=False)
    assert chain.confirmed


def test_pushes_wait_for_a_follower_that_does_not_keep_up() -> None:
    chain = ReplicationLink()
    chain.begin(1, followed=True)
    large = PushRecord(0, 0, Push(A, 1), np.zeros(MOST_QUEUED // 4 + 1, np.float32))
    chain.append(large)
    with pytest.raises(Moved, match="which has not heard of it yet"):
        chain.wait(0.0)
    assert chain.take(1, 1, 0.0) == ([large], 1)
    chain.wait(0.0)


def test_a_follower_that_is_lost_while_it_catches_up_is_not_waited_for() -> None:
    chain = ReplicationLink()
    chain.begin(1, followed=True)
    chain.append(_deed())
    chain.lose(1, "gone")
    chain.wait(0.0)
    assert (chain.link, chain.why) == (LinkState.ALONE, "gone")


def _deed() -> JournalRecord:
    return RoundRecord(0, 0)


# -- over gRPC -----------------------------------------------------------------------------------------------


class Chained(Job):
    """Two shards, each of which has a follower, and a word for who is killed."""

    def __init__(self, rule: str = "sgd") -> None:
        super().__init__(rule=rule)
        self.followers: list[tuple[ShardService, Server, int]] = []
        self.epochs = itertools.count(100)
        self.chains = [0, 0]
        self.extra: list[tuple[grpc.Channel, Server, ShardService]] = []
        for number in range(2):
            self.followers.append(self.follow(number))

    def follow(self, number: int) -> tuple[ShardService, Server, int]:
        """Have a new shard follow shard `number`."""
        service, epoch = ShardService(Metrics("ps"), 10.0), next(self.epochs)
        service.life.index = number
        server = Server("127.0.0.1:0", service.register)
        channel = open_channel(server.address)
        self.extra.append((channel, server, service))
        assignment = wire.Assignment(rule=self.rule)
        stub = stubs.ParametersStub(channel)
        stub.Configure(
            wire.ConfigureRequest(command=self.command(), job="digits", shard_epoch=epoch, assignment=assignment)
        )
        self.chains[number] += 1
        self.configure(number, chain=wire.Chain(epoch=self.chains[number], address=server.address, shard_epoch=epoch))
        return service, server, epoch

    def whole(self, number: int) -> None:
        """Wait until a shard's follower has all."""
        wait_until(lambda: self.services[number].life.chain.confirmed, "the follower to catch up")

    def promote(self, number: int) -> None:
        """The shard is dead; its follower goes on, alone."""
        self.servers[number].close(0.0)
        service, server, _ = self.followers[number]
        epoch = next(self.epochs)
        self.services[number], self.servers[number] = service, server
        channel = open_channel(server.address)
        self.channels.append(channel)
        self.stubs[number] = stubs.ParametersStub(channel)
        place = self.placement.places[number]
        runs = [segments.SegmentRun(first=first, count=count) for first, count in place.runs]
        self.chains[number] = 0
        self.configure(
            number, job="digits", shard_epoch=epoch, promoted=True, holdings=wire.Holdings(runs=runs), ready=True
        )
        places = list(self.placement.places)
        places[number] = dataclasses.replace(place, address=server.address, shard_epoch=epoch)
        self.placement = dataclasses.replace(self.placement, epoch=self.placement.epoch + 1, places=tuple(places))

    def close(self) -> None:
        super().close()
        for channel, server, service in self.extra:
            channel.close()
            server.close(0.0)
            service.life.close()
        for service in self.services:
            service.life.close()


@pytest.fixture
def chained() -> Iterator[Chained]:
    made = Chained()
    yield made
    made.close()


class Looked(ManualClock):
    """Counts how often somebody who waits has begun to."""

    looks = 0

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.looks += 1
        return super().wait(event, timeout_s)


@pytest.mark.processes
@pytest.mark.parametrize("answers", [0, 40])
def test_a_follower_that_answers_nothing_is_lost(answers: int) -> None:
    """As where a cable is cut: nobody ends the stream. Whatever it answers gives it its time again."""
    clock, chain, shard = Looked(), ReplicationLink(), a_shard("sgd", None, SPANS)
    answered, taken = threading.Semaphore(0), threading.Semaphore(answers)

    class Deaf(ShardService):
        def Carry(  # type: ignore[override]
            self, messages: Iterator[bytes], context: grpc.ServicerContext
        ) -> Iterator[wire.CarryReply]:
            for number, _ in enumerate(messages, 1):
                assert taken.acquire(timeout=60.0)
                yield wire.CarryReply(taken=number)
                answered.release()

    server = Server("127.0.0.1:0", Deaf(Metrics("ps")).register)
    chain.begin(1, followed=True)
    telling = FollowerStream(shard, chain, "job", 7)
    following = FollowerSender(telling, server.address, 8.0, clock)

    def pass_s(seconds: int, each_s: float = 1.0) -> None:
        for _ in range(seconds):
            looks = clock.looks
            clock.advance(each_s)
            wait_until(lambda looks=looks: clock.looks > looks or bool(chain.why))  # type: ignore[misc]

    try:
        wait_until(lambda: clock.looks > 0)
        if answers:  # all that there is to tell
            wait_until(lambda: chain.confirmed)
            pass_s(20)  # nothing is on its way: it may be silent
            assert chain.link is LinkState.WHOLE
            taken.acquire(blocking=True)
            while taken.acquire(blocking=False):
                pass
            chain.append(_deed())
        wait_until(lambda: telling.waits and chain.link is LinkState.WHOLE)  # small ones leave, whoever takes them
        pass_s(7)
        assert not chain.why
        pass_s(1, each_s=100.0)
        assert not chain.why, "the leader itself was stopped, and an answer may be there"
        pass_s(9)
        wait_until(lambda: bool(chain.why))
        assert chain.why == f"follower at {server.address}: has answered nothing for 8 s"
        assert chain.link is LinkState.LOST
    finally:
        for _ in range(100):
            taken.release()
        chain.begin(2, followed=False)
        following.close()
        server.close(0.0)


@pytest.mark.processes
def test_leaders_die_and_no_push_that_was_acknowledged_is_lost_or_counts_twice(chained: Chained) -> None:
    job, stop, pushed, another = chained, threading.Event(), {A: 0, B: 0}, threading.Semaphore(0)
    lost: list[int] = []

    def pushes(pusher: Pusher) -> None:
        client, versions = job.client(pusher, refresh=lambda: job.placement), job.held(0)
        while not stop.is_set():
            number = pushed[pusher] + 1
            lost.append(
                client.push(job.full(float(pusher.replica)), versions, Push(pusher, number, np.float32(1.0))).lost
            )
            pushed[pusher] = number
            another.release()

    threads = [threading.Thread(target=pushes, args=(pusher,)) for pusher in pushed]
    for thread in threads:
        thread.start()
    for turn in range(6):
        number = turn % 2
        job.whole(number)
        for _ in range(5):
            assert another.acquire(timeout=60), "they come on"
        job.promote(number)
        job.followers[number] = job.follow(number)
    stop.set()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert set(lost) == {0}
    np.testing.assert_array_equal(job.read(), -sum(pusher.replica * count for pusher, count in pushed.items()))


@pytest.mark.processes
def test_where_the_follower_dies_nothing_is_acknowledged_until_the_shard_stands_alone(chained: Chained) -> None:
    job = chained
    job.whole(0)
    done = threading.Event()
    client = job.client(A, refresh=lambda: job.placement)
    _, server, _ = job.followers[0]
    server.close(0.0)
    wait_until(lambda: job.services[0].life.chain.link is LinkState.LOST, "the stream to break")

    def pushes() -> None:
        client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1.0)))
        done.set()

    thread = threading.Thread(target=pushes)
    thread.start()
    wait_until(lambda: job.services[0].life.pushes > 30, "the push to come")
    assert not done.is_set()
    figures = job.services[0].figures()
    assert figures is not None
    assert (figures.chain_epoch, figures.followed, bool(figures.unfollowed)) == (1, False, True)
    job.chains[0] += 1
    job.configure(0, chain=wire.Chain(epoch=job.chains[0]))
    thread.join(60)
    assert done.is_set()
    np.testing.assert_array_equal(job.read(), -1.0)


@pytest.mark.processes
def test_a_leader_that_was_replaced_acknowledges_nothing_any_more(chained: Chained) -> None:
    job = chained
    job.whole(0)
    old, target = job.stubs[0], job.target(0)
    server, job.servers[0] = job.servers[0], Server("127.0.0.1:0", lambda _: None)  # it only seemed dead
    before = job.services[0]
    job.promote(0)
    before.life.deadline_s = 0.2
    opening = job.opening(Push(A, 1, np.float32(1.0)))
    opening.opening.target.CopyFrom(target)
    code, why = status(lambda: list(old.Push(iter([opening, job.part(0)]))))
    assert (code, "nothing is acknowledged without the follower" in why) == (grpc.StatusCode.ABORTED, True), why
    np.testing.assert_array_equal(job.read(), 0.0)
    before.life.close()
    server.close(0.0)
