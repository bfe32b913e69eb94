"""Rounds with a quorum: grace periods, and what pushes that come too late do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from dbelief.core.push import PARAMETERS, LedgerRow, Push, Pusher
from dbelief.errors import Unavailable
from dbelief.process.runtime import Runtime, use_runtime
from ps_server.replication.apply import apply
from ps_server.store.admission import MOST_ROUNDS
from ps_server.store.quorum import GracePeriods, Quorum

Make = Callable[..., Any]
A, B, C = (Pusher(number, 10 + number) for number in range(3))


class Clock(Runtime):
    """The system's runtime, with a clock that tests set."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    with use_runtime(made):
        yield made


def shard(make: Make, grace_s: float | None = 0.0, stale: float = 0.5, replicas: int = 2) -> Any:
    """Of three replicas, with rounds that end with two of them."""
    subject = make(staleness=0, quorum=Quorum(replicas, grace_s, stale))
    subject.shard.set_membership(1, [(0, [0, 1, 2])])
    return subject


def stepped(subject: Any) -> float:
    """What the gradients have changed so far, by a rate of 1; the same everywhere."""
    (value,) = set(subject.read().tolist())
    return float(-value)


def test_a_round_ends_with_its_quorum(make: Make) -> None:
    subject = shard(make)
    subject.push(C, 4.0)
    assert stepped(subject) == 0.0
    subject.push(A, 8.0)
    assert stepped(subject) == 6.0
    assert subject.shard.open_round([0, 1, 2]) == 1


@pytest.mark.parametrize(("grace_s", "end_s"), [(3.0, 170.0), (None, 166.0)])
def test_others_come_into_a_round_in_its_grace_period(
    make: Make, clock: Clock, grace_s: float | None, end_s: float
) -> None:
    """Without a number it is a 32nd of the 64 s up to the quorum."""
    subject = shard(make, grace_s)
    for one in A, B:
        subject.push(one, 0.0)
    clock.now_s += grace_s or 0.0  # the first round's
    subject.shard.barrier.close_rounds([0, 1, 2])
    clock.now_s += 64.0
    for one in A, B:
        subject.push(one, 3.0, clock=1)
    clock.now_s = end_s - 0.01
    subject.shard.barrier.close_rounds([0, 1])
    subject.push(C, 9.0, clock=1) if grace_s else None
    assert subject.shard.open_round([0]) == (2 if grace_s else 1)
    clock.now_s = end_s
    subject.shard.barrier.close_rounds([0, 1, 2])
    assert (subject.shard.open_round([0]), stepped(subject)) == (2, 5.0 if grace_s else 3.0)


@pytest.mark.parametrize(("late_s", "open_round"), [(4.0, 1), (6.0, 2)])
def test_a_replica_that_was_very_late_is_not_waited_for(
    make: Make, clock: Clock, late_s: float, open_round: int
) -> None:
    subject = shard(make, grace_s=5.0)
    for one in A, B:
        subject.push(one, 0.0)
    clock.now_s += 5.0
    subject.shard.barrier.close_rounds([0, 1, 2])
    clock.now_s += late_s
    for one in C, A, B:
        subject.push(one, 0.0, clock=0 if one is C else 1)
    assert subject.shard.open_round([0, 1, 2]) == open_round


def test_all_members_end_a_round_at_once(make: Make, clock: Clock) -> None:
    subject = shard(make, grace_s=1_000.0)
    for one in A, B, C:
        subject.push(one, 2.0)
    assert stepped(subject) == 2.0


def test_a_push_that_waits_ends_with_the_grace_period(make: Make) -> None:
    subject = shard(make, grace_s=0.05)
    subject.push(A, 2.0)
    subject.push(B, 4.0)
    assert stepped(subject) == 0.0
    subject.shard.wait_for_clock([0, 1, 2], 1, 30.0)
    assert stepped(subject) == 3.0


def test_a_wait_without_a_quorum_ends_at_its_deadline(make: Make) -> None:
    subject = shard(make)
    subject.push(A, 2.0)
    with pytest.raises(Unavailable, match=r"segment 0: round 0 still waits for replicas \[1, 2\]"):
        subject.shard.wait_for_clock([0], 1, 0.01)


@pytest.mark.parametrize(("stale", "mean"), [(0.5, (2 * 8.0 + 2 * 8.0 + 4 * 0.25 * 16.0) / 5), (1.0, 12.0), (0.0, 8.0)])
def test_a_late_push_is_in_the_next_round_by_its_age(make: Make, stale: float, mean: float) -> None:
    subject = shard(make, stale=stale)
    for one in A, B:
        subject.push(one, 0.0)
    for one in A, B:
        subject.push(one, 0.0, clock=1)
    late = subject.push(C, 16.0, samples=4)  # two rounds late
    subject.shard.wait_for_clock([0, 1, 2], 1, 0.0)  # it is acknowledged at once
    assert subject.shard.ledgers()[PARAMETERS, C] == (LedgerRow(1), LedgerRow(1))
    assert {one.staleness for one in subject.send(late, subject.full(16.0))} == {0}, "a duplicate has no effect"
    for one in A, B:
        subject.push(one, 8.0, clock=2, samples=2)
    assert stepped(subject) == pytest.approx(mean)


def test_pushes_report_how_many_rounds_they_are_late(make: Make) -> None:
    subject = shard(make)
    for clock in range(3):
        for one in A, B:
            subject.push(one, 0.0, clock=clock)
    late, early = Push(C, 1, clock=1), Push(B, 4, clock=3)
    assert [one.staleness for one in subject.send(late, subject.full(1.0))] == [2, 2, 2]
    assert [one.staleness for one in subject.send(early, subject.full(1.0))] == [0, 0, 0]


@pytest.mark.parametrize("late", [True, False])
def test_of_a_failed_replica_a_late_push_stays(make: Make, late: bool) -> None:
    """It was acknowledged. One of an open round was not, and its samples are leased again."""
    subject = shard(make)
    if late:
        for one in A, B:
            subject.push(one, 0.0)
    subject.push(C, 6.0, lease=1, position=8)
    subject.shard.fence([C.incarnation])
    kept = LedgerRow(1, 1, 8) if late else LedgerRow()
    assert subject.shard.ledgers()[PARAMETERS, C][0] == kept
    subject.shard.set_membership(2, [(0, [0, 1])])
    for one in A, B:
        subject.push(one, 3.0, clock=int(late))
    assert stepped(subject) == pytest.approx(3.6 if late else 3.0)  # (3 + 3 + 6 / 2) / 2.5


def test_a_failed_replica_begins_no_grace_period(make: Make, clock: Clock) -> None:
    subject = shard(make, grace_s=5.0)
    subject.push(A, 1.0)
    subject.push(C, 9.0)
    subject.shard.fence([C.incarnation])
    clock.now_s += 10.0
    subject.shard.barrier.close_rounds([0, 1, 2])
    assert subject.shard.open_round([0]) == 0
    subject.push(B, 3.0)
    clock.now_s += 4.0
    subject.shard.barrier.close_rounds([0, 1, 2])
    assert subject.shard.open_round([0]) == 0
    clock.now_s += 1.0
    subject.shard.barrier.close_rounds([0, 1, 2])
    assert stepped(subject) == 2.0


def test_a_late_push_counts_where_no_replica_is_left(make: Make) -> None:
    subject = shard(make)
    for one in A, B:
        subject.push(one, 0.0)
    subject.push(C, 6.0)
    subject.shard.set_membership(2, [(0, [])])
    assert stepped(subject) == 6.0
    assert subject.shard.open_round([0, 1, 2]) == 2


def test_a_promoted_follower_begins_the_grace_period_anew(make: Make, clock: Clock) -> None:
    leader, follower = shard(make, grace_s=5.0), make(staleness=0, quorum=Quorum(2, 5.0, 0.5))
    for index, segment in leader.shard.segments.items():
        segment.journal = partial(apply, follower.shard, follower.shard.segments[index])
    for one in A, B:
        leader.push(one, 3.0)
    clock.now_s += 4.0
    follower.shard.set_membership(1, [(0, [0, 1, 2])])
    for waited_s, step in (0.0, 0.0), (4.0, 0.0), (1.0, 3.0):
        clock.now_s += waited_s
        follower.shard.barrier.close_rounds([0, 1, 2])
        assert stepped(follower) == step


def test_nothing_is_kept_of_segments_that_are_elsewhere() -> None:
    periods = GracePeriods(Quorum(2, 5.0, 0.5))
    for index in 0, 1:
        periods.pushed(index, 0, 0, 10.0)
        assert not periods.is_over(index, 0, 2, [2], 11.0 + index)
    assert periods.next_end_s([0, 1], 99.0) == 16.0
    periods.retain([1])
    assert periods.next_end_s([0, 1], 99.0) == 17.0
    periods.clear()
    assert periods.next_end_s([0, 1], 99.0) == 99.0


def test_a_pause_without_replicas_makes_no_grace_period_longer(make: Make, clock: Clock) -> None:
    subject = shard(make, grace_s=None)
    for one in A, B, C:
        subject.push(one, 0.0)
    subject.shard.set_membership(2, [(0, [])])
    clock.now_s += 36_000.0
    subject.shard.set_membership(3, [(0, [0, 1, 2])])
    number = subject.shard.open_round([0])
    subject.push(A, 0.0, clock=number)
    clock.now_s += 64.0
    subject.push(B, 0.0, clock=number)
    clock.now_s += 2.0
    subject.shard.barrier.close_rounds([0, 1, 2])
    assert subject.shard.open_round([0, 1, 2]) == number + 1


def test_a_push_that_is_sent_again_is_not_late(make: Make, clock: Clock) -> None:
    subject = shard(make, grace_s=5.0)
    again = next(subject.push(one, 0.0) for one in (A, B, C))
    clock.now_s += 60.0
    subject.send(again, subject.full(0.0))
    for one in B, C:
        subject.push(one, 0.0, clock=1)
    assert subject.shard.open_round([0, 1, 2]) == 1, "the first replica is waited for"


def test_rounds_that_a_quorum_is_past_go_by_without_the_others(make: Make, clock: Clock) -> None:
    """As at a shard that was restored from a set."""
    subject = shard(make, grace_s=5.0)
    for one in A, B:
        subject.push(one, 3.0, clock=9)
    assert subject.shard.open_round([0, 1, 2]) == 9
    clock.now_s += 5.0
    subject.shard.barrier.close_rounds([0, 1, 2])
    assert (subject.shard.open_round([0, 1, 2]), stepped(subject)) == (10, 3.0)


def test_late_pushes_are_of_any_number_of_rounds(make: Make) -> None:
    subject = make(staleness=0, quorum=Quorum(1, 0.0, 0.5))
    pushers = [Pusher(number, 100 + number) for number in range(MOST_ROUNDS + 2)]
    subject.shard.set_membership(1, [(0, range(len(pushers)))])
    for clock in range(len(pushers)):
        subject.push(pushers[0], 0.0, clock=clock)
    for late, pusher in enumerate(pushers[1:]):
        subject.push(pusher, 0.0, clock=late)
    assert len(subject.shard.segments[0].staged) == MOST_ROUNDS + 1


def test_a_replica_that_leaves_out_rounds_is_not_waited_for(make: Make) -> None:
    """With a quorum of all, as where one segment is at a later round than the others."""
    subject = shard(make, replicas=3)
    subject.shard.record_clock([0, 2], 2, 1)
    for one in A, B:
        subject.push(one, 1.0)
    assert [subject.shard.open_round([index]) for index in range(3)] == [1, 0, 1]


def test_ledgers_in_a_set_have_no_push_that_waits(make: Make) -> None:
    subject = shard(make)
    for one in A, B:
        subject.push(one, 0.0)
    subject.push(C, 6.0)
    subject.push(A, 1.0, clock=1)
    segment = subject.shard.segments[0]
    rows = {pusher: row.sequence for (_, pusher), row in segment.applied_ledger().items() if pusher in (A, B, C)}
    assert rows == {A: 1, B: 1, C: 0}


def test_weights_that_vanish_divide_nothing(make: Make) -> None:
    subject = shard(make, stale=1e-200)
    for clock in range(3):
        for one in A, B:
            subject.push(one, 0.0, clock=clock)
    subject.push(C, 6.0)
    subject.shard.set_membership(2, [(0, [])])
    assert np.isfinite(subject.read()).all()
    assert not subject.read().any()
