"""A leader shard and its follower: the same numbers, and no acknowledged push is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import ACCRUED, LedgerRow, Push, Pusher
from dbelief.core.vector_program import copy, lincomb
from dbelief.errors import Moved, Rejected
from dbelief.optim import make_rule
from dbelief.process.clock import ManualClock
from dbelief.process.runtime import Event
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from ps_server.programs import ProgramExecutor
from ps_server.replication.link import MOST_QUEUED, LinkState, ReplicationLink
from ps_server.replication.migration import Migration
from ps_server.replication.sender import FollowerMessages, FollowerSender
from ps_server.replication.wire import receive
from ps_server.rpc.servicer import ShardService
from ps_server.store.journal import JournalRecord, PushRecord, RoundRecord
from ps_server.store.segment import Outcome
from ps_server.store.shard import Shard
from tests.ps_server.packed import packed
from tests.ps_server.replication.chained import Chained
from tests.ps_server.replication.test_migration import rows_before
from tests.ps_server.servers import A, B, leased, status, wait_until

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
        self.link = ReplicationLink()
        self.moves = Migration(self.follower)

    def begin(self) -> None:
        """The follower follows; its stream goes on bit by bit, by `flow`."""
        for segment in self.leader.segments.values():
            segment.journal = None
        self.link.begin(self.link.epoch + 1, followed=True)
        messages = FollowerMessages(self.leader, self.link, "job", 7)

        self._answers = receive(messages.all(), lambda opening: self.moves)
        self._messages = messages

    def flow(self, messages: int) -> None:
        """So many more messages arrive, and are answered; fewer where there are no more."""
        for _ in range(messages):
            if not self.waits:
                return
            next(self._answers)
            self._messages.acknowledged(1)

    @property
    def waits(self) -> bool:
        """Whether there is something that the follower has not."""
        return not (self.link.confirmed and self.link._acknowledged == self.link.appended)

    def settle(self) -> None:
        """All that is told arrives."""
        while self.waits:
            self.flow(1)

    def promote(self) -> None:
        """All that is told arrives, and the follower leads."""
        self.settle()
        self.moves.promote(9)
        self.moves.commit(range(3))
        self.follower.make_ready()

    def close(self) -> None:
        self.programs.close()
        self.link.begin(self.link.epoch + 1, followed=False)


kinds = st.sampled_from(["push", "exchange", "bundle", "program", "fence", "late", "flow"])


@given(st.lists(st.tuples(kinds, st.sampled_from([A, B]), st.integers(1, 6)), max_size=16), st.data())
def test_follower_matches_its_leader(acts: list[tuple[str, Pusher, int]], data: st.DataObject) -> None:
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
                program = [copy("d", "w"), lincomb("d", (0.5, "d"))]
                pair.programs.run([*program, copy("e", "d")] if number % 2 else program)
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
        _assert_equal(pair.leader, {index: pair.moves._received[index] for index in pair.leader.segments})
        for index in pair.leader.segments:
            assert pair.follower.answers.for_segment(index).keys() == pair.leader.answers.for_segment(index).keys()
    finally:
        pair.close()


def _push(
    shard: Shard, what: str, pusher: Pusher, numbers: dict[Pusher, int], bundle: int, rng: Any, rule: str
) -> None:
    values = rng.standard_normal((len(SPANS), LENGTH), dtype=np.float32)
    if what == "bundle":
        push = Push(pusher, 0, vector=ACCRUED, clock=1, bundle=bundle, packed=bundle % 2 == 0)
        for span in SPANS:
            shard.push(push, span.index, packed(values[span.index]) if push.packed else values[span.index])
        return
    numbers[pusher] += 1
    push = leased(Push(pusher, numbers[pusher], np.float32(0.25), samples=3, clock=numbers[pusher] - 1))
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
        assert rows_before(segment) == rows_before(expected)
        assert segment.applied_ledger() == expected.applied_ledger()
        assert sorted(segment.sum.waiting) == sorted(expected.sum.waiting)


def test_promoted_follower_repeats_exchange_answers() -> None:
    pair = Pair("elastic", None)
    pair.begin()
    push, weights = Push(A, 1, np.float32(0.5)), np.full(LENGTH, 3.0, np.float32)
    answers, _, _ = pair.leader.exchange(push, [(span.index, weights) for span in SPANS])
    pair.promote()
    again, duplicates, lost = pair.follower.exchange(push, [(span.index, weights) for span in SPANS])
    assert (duplicates, lost) == (3, 0)
    for (version, before), (same, values) in zip(answers, again, strict=True):
        assert version == same
        np.testing.assert_array_equal(before, values)
    pair.close()


def test_promoted_follower_counts_the_same_loss_for_a_repeated_push() -> None:
    """The leader was restored without pushes 1 to 4, and fails after push 5 and before its reply."""
    pair = Pair("sgd", None)
    pair.begin()
    ones, push = np.ones(LENGTH, np.float32), Push(A, 5, np.float32(0.5), base=5)
    assert [pair.leader.push(push, span.index, ones).lost for span in SPANS] == [4, 4, 4]
    pair.promote()
    again = [pair.follower.push(push, span.index, ones) for span in SPANS]
    assert {(one.outcome, one.lost) for one in again} == {(Outcome.DUPLICATE, 4)}
    later = [pair.follower.push(Push(A, 6, np.float32(0.5), base=6), span.index, ones) for span in SPANS]
    assert {(one.outcome, one.lost) for one in later} == {(Outcome.APPLIED, 0)}
    assert (pair.follower.lost(), pair.follower.lost_of()) == ([4, 4, 4], {A: 4})
    with pytest.raises(Rejected, match="push 8 of replica 1 on 'w' was received where 7 was expected"):
        pair.follower.push(Push(A, 8, np.float32(0.5), base=8), 0, ones)
    pair.close()


def test_promoted_follower_completes_open_rounds() -> None:
    pair = Pair("sgd", 0)
    pair.begin()
    ones = np.ones(LENGTH, np.float32)
    first = Push(A, 1, np.float32(1.0))
    pair.leader.push(first, 0, ones)
    pair.promote()
    pair.follower.set_membership(1, [(0, [A.replica, B.replica])])
    before = pair.follower.pull("w", 0)[1]
    pair.follower.push(first, 0, ones)
    pair.follower.push(Push(B, 1, np.float32(1.0)), 0, 3 * ones)
    assert before is not None
    np.testing.assert_array_equal(
        pair.follower.segments[0].vectors["w"], np.frombuffer(before, np.float32) - np.float32(2.0)
    )
    pair.close()


@pytest.mark.parametrize("followed", ["from the beginning", "with gradients that wait"])
def test_promoted_follower_has_leases_and_positions(followed: str) -> None:
    """It gets them with each push, or with the segment; when A is fenced, the row before its gradients that wait."""
    pair, ones = Pair("sgd", 0), np.ones(LENGTH, np.float32)
    if followed == "from the beginning":
        pair.begin()
    pair.leader.push(Push(B, 1, lease=4, position=30), 1, ones)
    for clock, (lease, position) in enumerate([(3, 32), (3, 64), (6, 32)]):
        pair.leader.push(Push(A, clock + 1, clock=clock, lease=lease, position=position), 1, ones)
    if followed != "from the beginning":
        pair.begin()
    pair.promote()
    segment = pair.follower.segments[1]
    assert (segment.ledger.row(A), segment.ledger.row(B)) == (LedgerRow(3, 6, 32), LedgerRow(1, 4, 30))
    assert segment.applied_ledger()["w", A] == LedgerRow(1, 3, 32)
    pair.follower.fence([A.incarnation])
    assert (segment.ledger.row(A), segment.ledger.row(B)) == (LedgerRow(1, 3, 32), LedgerRow(1, 4, 30))
    pair.close()


def test_fenced_round_gradients_are_dropped_at_the_follower() -> None:
    pair = Pair("sgd", 0)
    pair.begin()
    pair.settle()
    pair.leader.push(Push(A, 1, np.float32(1.0)), 0, np.ones(LENGTH, np.float32))
    pair.leader.push(Push(B, 1, np.float32(1.0)), 1, np.ones(LENGTH, np.float32))
    pair.leader.fence([A.incarnation])
    pair.settle()
    _assert_equal(pair.leader, pair.moves._received)
    assert not pair.moves._received[0].staged
    pair.close()


def test_forgotten_incarnations_are_dropped_at_the_follower() -> None:
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
    for segment in pair.moves._received.values():
        assert {pusher for _, pusher in segment.ledger.last} == {Pusher(0, 1), B}
        assert {pusher for _, pusher in segment.ledger.bases} == {Pusher(0, 1), B}
    pair.close()


def test_record_out_of_sequence_is_refused() -> None:
    pair = Pair("sgd", None)
    pair.begin()
    pair.settle()
    pair.moves._received[1].version += 1
    pair.leader.push(Push(A, 1, np.float32(1.0)), 1, np.ones(LENGTH, np.float32))
    with pytest.raises(Rejected, match="segment 1: version 1 here, and 0 at the leader"):
        pair.flow(1)
    pair.close()


def test_acknowledgement_wait_depends_on_link_state() -> None:
    link, record = ReplicationLink(), _record()
    link.wait(link.appended, 0.0)
    link.begin(1, followed=True)
    link.append(record)
    link.wait(link.appended, 0.0)  # it catches up: nobody counts on it
    link.has_segments(1)
    with pytest.raises(Moved, match="which has not acknowledged it yet"):
        link.wait(link.appended, 0.0)
    assert link.take(1, 100) == ([record], 1)
    link.acknowledged(1, 1, complete=True)
    link.wait(link.appended, 0.0)
    assert link.confirmed
    link.append(record)
    link.lose(1, "its cable was cut")
    with pytest.raises(Moved, match="which was lost: its cable was cut"):
        link.wait(link.appended, 0.0)
    assert (link.state, link.confirmed, link.take(1, 100)) == (LinkState.LOST, False, None)
    link.begin(2, followed=False)
    link.wait(link.appended, 0.0)
    link.lose(1, "what was said of the one before")
    assert (link.state, link.why) == (LinkState.UNREPLICATED, "")


def test_follower_is_in_sync_after_all_earlier_records() -> None:
    link, record = ReplicationLink(), _record()
    link.begin(1, followed=True)
    for _ in range(3):
        link.append(record)
    assert link.take(1, 0) == ([record, record, record], 3)
    link.append(record)
    link.has_segments(1)
    link.acknowledged(1, 3, complete=True)
    assert not link.confirmed, "a push that was acknowledged still waits to be told"
    link.acknowledged(1, 4, complete=False)
    assert link.confirmed


def test_pushes_wait_for_a_follower_that_does_not_keep_up() -> None:
    link = ReplicationLink()
    link.begin(1, followed=True)
    numbers = np.zeros(MOST_QUEUED // 4 + 1, np.float32)
    numbers.setflags(write=False)  # of a message
    large = PushRecord(0, 0, Push(A, 1), numbers)
    link.append(large)
    with pytest.raises(Moved, match="which has not acknowledged it yet"):
        link.wait(link.appended, 0.0)
    assert link.take(1, 1) == ([large], 1)
    link.wait(link.appended, 0.0)


def test_numbers_are_copied_while_the_follower_catches_up_alone() -> None:
    """Until then nobody waits for it: a push is acknowledged, and its memory used again."""
    link, numbers = ReplicationLink(), np.ones(3, np.float32)
    link.begin(1, followed=True)
    link.append(PushRecord(0, 0, Push(A, 1), numbers))
    link.has_segments(1)
    link.append(PushRecord(0, 1, Push(A, 2), numbers))
    taken = link.take(1, 100)
    assert taken is not None
    before, after = (record.values for record in taken[0] if isinstance(record, PushRecord))
    assert not np.may_share_memory(before, numbers)
    assert after is numbers


def test_follower_lost_while_catching_up_is_not_waited_for() -> None:
    link = ReplicationLink()
    link.begin(1, followed=True)
    link.append(_record())
    link.lose(1, "gone")
    link.wait(link.appended, 0.0)
    assert (link.state, link.why) == (LinkState.UNREPLICATED, "gone")


@pytest.mark.parametrize("lost", [False, True])
def test_calls_that_wait_fail_when_the_shard_ends(lost: bool) -> None:
    link = ReplicationLink()
    link.begin(1, followed=True)
    link.has_segments(1)
    link.append(_record())
    if lost:
        link.lose(1, "gone")
    failed: list[Moved] = []

    def waits() -> None:
        try:
            link.wait(1, 60.0)
        except Moved as error:
            failed.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    link.close()
    thread.join(60.0)
    assert not thread.is_alive()
    assert failed
    with pytest.raises(Moved):
        link.wait(1, 60.0)


def test_no_call_of_an_unreplicated_shard_fails_when_it_ends() -> None:
    link = ReplicationLink()
    link.close()
    link.wait(0, 0.0)
    assert (link.state, link.why) == (LinkState.UNREPLICATED, "")


class Acknowledgements:
    """Sender whose acknowledgements of one record each arrive when a test says so."""

    is_local = True

    def __init__(self, link: ReplicationLink) -> None:
        self.readers: list[int] = []  # the thread of each acknowledgement
        self._link, self._count, self._arrived = link, 0, threading.Semaphore(0)

    def arrive(self) -> None:
        self._arrived.release()

    def receive(self) -> None:
        if self._arrived.acquire(timeout=0.05):
            self._count += 1
            self.readers.append(threading.get_ident())
            self._link.acknowledged(1, self._count, complete=True)


def _in_sync() -> tuple[ReplicationLink, Acknowledgements]:
    link = ReplicationLink()
    link.begin(1, followed=True)
    link.has_segments(1)
    return link, Acknowledgements(link)


def test_an_acknowledgement_wakes_only_those_it_is_for() -> None:
    """And one to read the next; four workers' pushes would else wake each other, as often as each has to run."""
    link, sender = _in_sync()
    threads = []
    for records in (1, 2, 3, 4):
        link.append(_record())
        threads.append(threading.Thread(target=link.wait, args=(records, 60.0, sender)))
        threads[-1].start()
        wait_until(lambda: len(link._waiting) == len(threads))
    sender.arrive()
    threads[0].join(60.0)
    assert [call.woken.is_set() for call in link._waiting] == [True, False, False]
    assert link._reader is next(iter(link._waiting))
    for thread in threads[1:]:
        assert thread.is_alive()
        sender.arrive()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert not link._waiting
    assert link._reader is None
    assert sender.readers == [thread.ident for thread in threads]


def test_thread_that_reads_waits_no_longer_than_its_timeout() -> None:
    link, sender = _in_sync()
    link.append(_record())
    with pytest.raises(Moved, match="which has not acknowledged it yet"):
        link.wait(1, 0.01, sender)
    sender.arrive()
    link.wait(1, 60.0, sender)
    assert sender.readers == [threading.get_ident()]


def test_thread_that_reads_returns_when_the_link_ends() -> None:
    link, sender = _in_sync()
    link.append(_record())
    thread = threading.Thread(target=link.wait, args=(1, 60.0, sender))
    thread.start()
    wait_until(lambda: link._reader is not None)
    link.begin(2, followed=False)
    thread.join(60.0)
    assert not thread.is_alive()
    assert not sender.readers


def test_threads_that_wait_read_once_the_stream_is_local() -> None:
    link, sender = _in_sync()
    sender.is_local = False
    link.append(_record())
    thread = threading.Thread(target=link.wait, args=(1, 60.0, sender))
    thread.start()
    sender.arrive()
    sender.is_local = True
    link.wake_waiting()
    thread.join(60.0)
    assert not thread.is_alive()
    assert sender.readers == [thread.ident]


def _record() -> JournalRecord:
    return RoundRecord(0, 0)


# -- over gRPC -----------------------------------------------------------------------------------------------


@pytest.fixture
def chained() -> Iterator[Chained]:
    made = Chained()
    yield made
    made.close()


class Looked(ManualClock):
    """Counts how often somebody who waits has begun to."""

    looks = 0

    def wait(self, event: Event, timeout_s: float) -> bool:
        self.looks += 1
        return super().wait(event, timeout_s)


@pytest.mark.processes
@pytest.mark.parametrize("answers", [0, 40])
def test_a_follower_that_answers_nothing_is_lost(answers: int) -> None:
    """As where a cable is cut: nobody ends the stream. Whatever it answers gives it its time again."""
    clock, link, shard = Looked(), ReplicationLink(), a_shard("sgd", None, SPANS)
    answered, taken = threading.Semaphore(0), threading.Semaphore(answers)

    class Deaf(ShardService):
        def Carry(  # type: ignore[override]
            self, messages: Iterator[bytes], context: grpc.ServicerContext
        ) -> Iterator[wire.CarryReply]:
            for number, _ in enumerate(messages, 1):
                assert taken.acquire(timeout=60.0)
                yield wire.CarryReply(received=number)
                answered.release()

    server = Server("127.0.0.1:0", Deaf(Metrics("ps")).register)
    link.begin(1, followed=True)
    messages = FollowerMessages(shard, link, "job", 7)
    following = FollowerSender(messages, server.address, 8.0, clock)

    def pass_s(seconds: int, each_s: float = 1.0) -> None:
        for _ in range(seconds):
            looks = clock.looks
            clock.advance(each_s)
            wait_until(lambda looks=looks: clock.looks > looks or bool(link.why))  # type: ignore[misc]

    try:
        wait_until(lambda: clock.looks > 0)
        if answers:  # all that there is to tell
            wait_until(lambda: link.confirmed)
            pass_s(20)  # nothing is on its way: it may be silent
            assert link.state is LinkState.IN_SYNC
            taken.acquire(blocking=True)
            while taken.acquire(blocking=False):
                pass
            link.append(_record())
        wait_until(lambda: messages.waits and link.state is LinkState.IN_SYNC)  # small ones leave, whoever takes them
        pass_s(7)
        assert not link.why
        pass_s(1, each_s=100.0)
        assert not link.why, "the leader itself was stopped, and an answer may be there"
        pass_s(9)
        wait_until(lambda: bool(link.why))
        assert link.why == f"follower at {server.address}: no progress for 8 s"
        assert link.state is LinkState.LOST
    finally:
        for _ in range(100):
            taken.release()
        link.begin(2, followed=False)
        following.close()
        server.close(0.0)


@pytest.mark.processes
def test_no_acknowledged_push_is_lost_when_leaders_die(chained: Chained) -> None:
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
def test_pushes_wait_after_follower_death_until_detached(chained: Chained) -> None:
    job = chained
    job.whole(0)
    done = threading.Event()
    client = job.client(A, refresh=lambda: job.placement)
    _, server, _ = job.followers[0]
    server.close(0.0)
    wait_until(lambda: job.services[0].controller.link.state is LinkState.LOST, "the stream to break")

    def pushes() -> None:
        client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1.0)))
        done.set()

    thread = threading.Thread(target=pushes)
    thread.start()
    wait_until(lambda: job.services[0].controller.pushes > 30, "the push to come")
    assert not done.is_set()
    figures = job.services[0].figures()
    assert figures is not None
    assert (figures.link_epoch, figures.in_sync, bool(figures.follower_error)) == (1, False, True)
    job.chains[0] += 1
    job.configure(0, link=wire.FollowerLink(epoch=job.chains[0]))
    thread.join(60)
    assert done.is_set()
    np.testing.assert_array_equal(job.read(), -1.0)


@pytest.mark.processes
def test_replaced_leader_acknowledges_nothing(chained: Chained) -> None:
    job = chained
    job.whole(0)
    old, target = job.stubs[0], job.target(0)
    server, job.servers[0] = job.servers[0], Server("127.0.0.1:0", lambda _: None)  # it only seemed dead
    before = job.services[0]
    job.promote(0)
    before.controller.deadline_s = 0.2
    opening = job.opening(Push(A, 1, np.float32(1.0)))
    opening.opening.target.CopyFrom(target)
    code, why = status(lambda: list(old.Push(iter([opening, job.part(0)]))))
    assert (code, "nothing is acknowledged without the follower" in why) == (grpc.StatusCode.ABORTED, True), why
    np.testing.assert_array_equal(job.read(), 0.0)
    before.controller.close()
    server.close(0.0)


@pytest.mark.processes
def test_replaced_leader_answers_no_pulls(chained: Chained) -> None:
    """One that was suspended: without an answered heartbeat it asks its follower before it answers."""
    job = chained
    job.whole(0)
    before, old, target = job.services[0].controller, job.stubs[0], job.target(0)
    request = wire.PullRequest(target=target, vector="w", segments=[0])
    assert len(list(old.Pull(iter([request])))) == 1
    before.leads_until_s = lambda: 0.0
    assert len(list(old.Pull(iter([request])))) == 1  # its follower has confirmed that it is one
    server, job.servers[0] = job.servers[0], Server("127.0.0.1:0", lambda _: None)
    job.promote(0)
    before.deadline_s = 0.2
    code, why = status(lambda: list(old.Pull(iter([request]))))
    assert (code, "nothing is acknowledged without the follower" in why) == (grpc.StatusCode.ABORTED, True), why
    before.close()
    server.close(0.0)
