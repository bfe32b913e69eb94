"""The staleness dial at N >= 1, and at any N after a shard came back from a snapshot."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.checkpoint.shard_file import StoredSegment
from dbelief.core.push import Push, Pusher
from dbelief.errors import Unavailable
from ps_server.replication.migration import Migration
from ps_server.store.segment import Outcome
from ps_server.store.shard import Shard
from tests.examples import examples
from tests.ps_server.servers import wait_until

Make = Callable[..., Any]
A, B, C, D = REPLICAS = tuple(Pusher(number, 10 + number) for number in range(4))
ALL = [0, 1, 2]


def may_read(subject: Any, clock: int, segments: list[int] = ALL) -> bool:
    try:
        subject.shard.wait_for_clock(segments, clock, 0.0)
    except Unavailable:
        return False
    return True


def members(subject: Any, epoch: int, *replicas: int) -> int:
    highest: int = subject.shard.set_membership(epoch, [(0, replicas)])
    return highest


def load(shard: Shard, before: Shard) -> None:
    """Put a shard back as another is now, in a second life."""
    for segment in before.segments.values():
        books = segment.version, segment.applied, segment.rounds, segment.ledger.lost, segment.applied_ledger()
        shard.load(StoredSegment(segment.span, *books, dict(segment.vectors)), 2)


def came_back(subject: Any, make: Make, staleness: int) -> Any:
    """A shard in a new life that holds what this one holds now."""
    again = make(staleness=staleness)
    load(again.shard, subject.shard)
    again.sequences = dict(subject.sequences)
    return again


def steps(subject: Any) -> set[int]:
    return {segment.applied for segment in subject.shard.segments.values()}


# -- N >= 1 --------------------------------------------------------------------------------------------------


def test_pushes_apply_at_once_with_their_staleness(make: Make) -> None:
    subject = make(staleness=2)
    members(subject, 1, 0, 1)
    subject.push(A, 1.0)
    np.testing.assert_array_equal(subject.read(), subject.full(-1.0))
    push = Push(B, 1, np.float32(1))
    assert [(one.outcome, one.staleness) for one in subject.send(push, subject.full(1.0))] == [(Outcome.APPLIED, 1)] * 3
    assert [one.outcome for one in subject.send(push, subject.full(9.0))] == [Outcome.DUPLICATE] * 3
    np.testing.assert_array_equal(subject.read(), subject.full(-2.0))


@pytest.mark.parametrize("staleness", [1, 2, 7])
def test_reader_may_lead_by_the_staleness_bound(make: Make, staleness: int) -> None:
    subject = make(staleness=staleness)
    members(subject, 1, 0, 1)
    for clock in range(3):
        subject.push(B, 1.0, clock=clock)
        subject.push(A, 1.0, clock=clock)
        assert may_read(subject, clock + 1 + staleness)
        assert not may_read(subject, clock + 2 + staleness)


def test_each_segment_asked_for_counts_and_no_other(make: Make) -> None:
    subject = make(staleness=1)
    members(subject, 1, 0)
    subject.send(Push(A, 1, np.float32(1), clock=0), subject.full(1.0), [0, 2])
    assert may_read(subject, 2, [0, 2])
    assert not may_read(subject, 2, [0, 1])


def test_push_of_several_batches_passes_the_last_clock(make: Make) -> None:
    subject = make(staleness=4)
    members(subject, 1, 0)
    subject.push(A, 1.0, clock=3)
    assert may_read(subject, 8)
    assert not may_read(subject, 9)


def test_joining_member_starts_at_the_highest_clock(make: Make) -> None:
    subject = make(staleness=1)
    assert members(subject, 1, 0) == 0
    for clock in range(5):
        subject.push(A, 1.0, clock=clock)
    assert members(subject, 2, 0, 1) == 5
    assert may_read(subject, 6)
    subject.push(A, 1.0, clock=5)
    assert not may_read(subject, 7)
    subject.push(B, 1.0, clock=5)
    assert may_read(subject, 7)


def test_a_pull_says_how_far_the_puller_is_at_least(make: Make) -> None:
    """Segments may be further apart than the dial where they come from one snapshot set: all begin at the highest."""
    subject = make(staleness=1)
    subject.send(Push(C, 1, np.float32(1), clock=8), subject.full(0.0), [1])
    assert members(subject, 1, 0, 1) == 9
    assert not may_read(subject, 9)
    subject.shard.record_clock(ALL, 0, 9)
    assert not may_read(subject, 9)
    subject.shard.record_clock(ALL, 1, 9)
    assert may_read(subject, 9)
    assert not may_read(subject, 11)


@pytest.mark.parametrize("ends", ["a push", "a member less", "a call"])
def test_waiting_reader_is_woken(make: Make, ends: str) -> None:
    subject, woken = make(staleness=1), threading.Event()
    members(subject, 1, 0, 1)
    subject.push(A, 1.0)

    def wait() -> None:
        subject.shard.wait_for_clock(ALL, 2, 10.0)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(subject.shard.barrier._awaited))
    assert not woken.is_set()
    if ends == "a push":
        subject.push(B, 1.0)
    elif ends == "a call":
        subject.shard.record_clock(ALL, 1, 2)
    else:
        members(subject, 2, 0)
    assert woken.wait(60)
    thread.join(60)


@examples(60)
@given(
    staleness=st.integers(1, 4),
    story=st.lists(
        st.tuples(st.sampled_from(["step", "step", "step", "leave", "come"]), st.integers(0, 3)), max_size=80
    ),
)
def test_the_lead_is_bounded_and_somebody_always_moves(
    make: Make, staleness: int, story: list[tuple[str, int]]
) -> None:
    """Replicas fetch and push segment by segment in any order, and come and go; clocks are those of the members."""
    subject, epoch = make(staleness=staleness), 1
    clocks = {0: 0, 1: 0}  # by member
    left: dict[int, list[int]] = {}  # segments that the push under way has not reached
    members(subject, epoch, *clocks)
    sequences = dict.fromkeys(range(4), 0)

    def step(number: int) -> bool:
        clock = clocks[number]
        if number not in left:
            if not may_read(subject, clock):
                return False
            sequences[number] += 1
            left[number] = [2, 0, 1] if number % 2 else [0, 1, 2]
        push = Push(REPLICAS[number], sequences[number], np.float32(1), clock=clock)
        subject.send(push, subject.full(1.0), [left[number].pop()])
        if not left[number]:
            del left[number]
            clocks[number] += 1
        return True

    for what, number in [*story, *[("step", n) for n in range(4)] * 5]:
        if what == "step" and number in clocks:
            step(number)
        elif what == "leave" and number in clocks and number not in left:
            del clocks[number]
            epoch += 1
            members(subject, epoch, *clocks)
        elif what == "come" and number not in clocks:
            epoch += 1
            clocks[number] = members(subject, epoch, number, *clocks)
        if clocks:
            assert max(clocks.values()) - min(clocks.values()) <= staleness + 1
            assert any(step(n) for n in sorted(clocks, key=lambda n: clocks[n])), "nobody moves"


# -- after a shard came back ---------------------------------------------------------------------------------


def test_rounds_that_all_have_passed_go_by_without_a_step(make: Make) -> None:
    before = make(staleness=0)
    members(before, 1, 0, 1)
    for pusher in (A, B):
        before.push(pusher, 1.0)
    again = came_back(before, make, 0)
    members(again, 2, 0, 1)
    again.shard.record_clock(ALL, 0, 40)
    assert not may_read(again, 40)
    again.shard.record_clock(ALL, 1, 40)
    assert may_read(again, 40)
    assert steps(again) == {1}
    for pusher in (A, B):
        again.push(pusher, 3.0, clock=40)
    np.testing.assert_array_equal(again.read(), again.full(-4.0))
    assert may_read(again, 41)


def test_reported_clocks_go_with_a_segment_that_migrates(make: Make) -> None:
    """Where it comes back, what its last owner had received holds; after a move that failed, its own."""
    again, elsewhere = came_back(make(staleness=0), make, 0), make(staleness=0)
    again.shard.record_clock(ALL, 0, 6)
    moves = Migration(again.shard)
    with pytest.raises(ConnectionError):
        moves.send([1], "the other", no_connection)
    moves.commit(ALL)
    assert [again.shard.barrier.passed_clocks(index) for index in ALL] == [{0: 6}] * 3
    moves.send([1, 2], "the other", lambda carried: None)
    moves.commit([0])
    assert [again.shard.barrier.passed_clocks(index) for index in ALL] == [{0: 6}, None, None]
    elsewhere.shard.set_segments(elsewhere.shard.segments, {1: {0: 4}, 2: None})
    assert [elsewhere.shard.barrier.passed_clocks(index) for index in ALL] == [None, {0: 4}, None]


def no_connection(carried: object) -> None:
    raise ConnectionError


def test_round_waits_only_for_members_not_past_it(make: Make) -> None:
    """One was told that round 5 is done, the other's answer was lost with the shard: it pushes again, alone."""
    again = came_back(make(staleness=0), make, 0)
    members(again, 1, 0, 1)
    again.shard.record_clock(ALL, 0, 6)
    again.push(B, 2.0, clock=5)
    np.testing.assert_array_equal(again.read(), again.full(-2.0))
    assert may_read(again, 6)
    with pytest.raises(Unavailable, match=r"round 6 still waits for replicas \[0, 1\]"):
        again.shard.wait_for_clock(ALL, 7, 0.0)


def test_push_records_the_clock_as_a_pull_does(make: Make) -> None:
    again = came_back(make(staleness=0), make, 0)
    members(again, 1, 0, 1)
    again.push(A, 1.0, clock=7)
    assert not again.read().any()
    again.push(B, 3.0, clock=7)
    np.testing.assert_array_equal(again.read(), again.full(-2.0))
    assert may_read(again, 8)


def test_one_rank_that_is_ahead_does_not_speak_for_another(make: Make) -> None:
    """Of each replica rank 0 has segment 0, and is told that round 4 is done there; rank 1 is still to push its own."""
    again = came_back(make(staleness=0), make, 0)
    members(again, 1, 0, 1)
    for replica in (0, 1):
        again.shard.record_clock([0], replica, 5)
    for pusher in (A, B):
        push = Push(pusher._replace(rank=1), 1, np.float32(1), clock=4)
        again.send(push, again.full(2.0), [1, 2])
    for index, expected in ((0, 0.0), (1, -2.0), (2, -2.0)):
        np.testing.assert_array_equal(np.frombuffer(again.shard.pull("w", index)[1], np.float32), expected)
    assert may_read(again, 5)


def test_clock_is_recorded_per_segment(make: Make) -> None:
    subject = make(staleness=1)
    members(subject, 1, 0, 1)
    subject.send(Push(A, 1, np.float32(1), clock=8), subject.full(0.0))
    subject.shard.record_clock([0], 1, 9)
    assert may_read(subject, 9, [0])
    assert not may_read(subject, 9, [1])


def test_a_shard_that_never_came_back_believes_no_call(make: Make) -> None:
    subject = make(staleness=0)
    members(subject, 1, 0)
    subject.shard.record_clock(ALL, 0, 9)
    assert not may_read(subject, 1)


@pytest.mark.parametrize("told_first", [True, False])
def test_members_before_recovery_block_only_after_they_call(make: Make, told_first: bool) -> None:
    before = make(staleness=2)
    members(before, 1, 0, 1)
    for clock in range(3):
        before.push(A, 1.0, clock=clock)
        before.push(B, 1.0, clock=clock)
    again = make(staleness=2) if told_first else came_back(before, make, 2)
    members(again, 4, 0, 1)
    if told_first:
        load(again.shard, before.shard)
    again.sequences = dict(before.sequences)
    assert may_read(again, 40)
    again.push(A, 1.0, clock=40)
    assert may_read(again, 43)
    again.push(B, 1.0, clock=39)
    assert may_read(again, 42)
    assert not may_read(again, 43)


def test_member_joining_after_recovery_is_waited_for(make: Make) -> None:
    again = came_back(make(staleness=2), make, 2)
    members(again, 4, 0)
    again.push(A, 1.0, clock=40)
    assert members(again, 5, 0, 1) == 41
    assert not may_read(again, 44)


@pytest.mark.parametrize("staleness", [0, 2])
def test_replicas_go_on_over_a_shard_that_lost_clocks(make: Make, staleness: int) -> None:
    """Three in turn; in mid-run the shard comes back as it was fifteen clocks ago, and nobody waits forever."""
    subject, old = make(staleness=staleness), None
    members(subject, 1, 0, 1, 2)
    for clock in range(40):
        if clock == 10:
            old = came_back(subject, make, staleness)
        if clock == 25:
            subject = old
            members(subject, 2, 0, 1, 2)
        for pusher in (A, B, C):
            subject.shard.record_clock(ALL, pusher.replica, clock)
        for pusher in (A, B, C):
            assert may_read(subject, clock)
            subject.sequences[pusher] = subject.shard.segments[0].ledger.row(pusher).sequence
            subject.push(pusher, 1.0, clock=clock)
    assert steps(subject) == {25 if staleness == 0 else 75}
