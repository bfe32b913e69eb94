"""Whose clock counts where replicas may differ by N clocks: who is a member, and where each one goes on."""

from __future__ import annotations

import json

import pytest

from coordinator.scheduling.bounded_staleness import BoundedStalenessPolicy


def told(clocks: BoundedStalenessPolicy, clock: int = 0) -> list[int]:
    """The shards are told, and answer with their highest clock; who is a member now."""
    assert clocks.membership_changed()
    clocks.shards_acknowledged(clocks.member_epoch, clock)
    ((first, members),) = clocks.membership()
    assert first == 0
    return members


def test_one_who_comes_has_no_clock_before_the_shards_know_it() -> None:
    clocks = BoundedStalenessPolicy()
    assert clocks.enter(3, 30) is None
    assert clocks.enter(3, 30) is None
    assert told(clocks, clock=17) == [3]
    assert clocks.enter(3, 30) == 17
    assert not clocks.membership_changed(), "the shards are told once"


def test_the_clock_goes_on_from_lease_to_lease_without_news() -> None:
    clocks = BoundedStalenessPolicy()
    clocks.enter(0, 1)
    told(clocks, clock=5)
    for expected, steps in [(5, 4), (9, 3), (12, 4)]:
        assert clocks.enter(0, 1) == expected
        clocks.leased(0, steps)
    assert not clocks.membership_changed()
    assert clocks.clock == 16


def test_one_without_work_is_no_member_and_comes_back_at_the_current_clock() -> None:
    clocks = BoundedStalenessPolicy()
    for replica in (0, 1):
        clocks.enter(replica, 10 + replica)
    assert told(clocks) == [0, 1]
    clocks.leased(0, 4)
    clocks.leave(0, 10)
    assert told(clocks) == [1]
    clocks.leave(0, 10)
    assert not clocks.membership_changed()
    assert clocks.enter(0, 10) is None
    assert told(clocks, clock=40) == [0, 1]
    assert clocks.enter(0, 10) == 40
    assert clocks.enter(1, 11) == 0, "who was a member keeps its clock"


def test_an_answer_that_is_older_than_the_entry_gives_no_clock() -> None:
    clocks = BoundedStalenessPolicy()
    clocks.enter(0, 1)
    first = clocks.member_epoch
    clocks.membership_changed()
    clocks.enter(1, 2)
    clocks.shards_acknowledged(first, 7)
    assert clocks.enter(0, 1) == 7
    assert clocks.enter(1, 2) is None
    assert told(clocks, clock=9) == [0, 1]
    assert clocks.enter(1, 2) == 9


def test_a_new_life_of_a_number_waits_until_the_old_one_is_fenced() -> None:
    clocks = BoundedStalenessPolicy()
    clocks.enter(0, 1)
    told(clocks)
    assert clocks.enter(0, 2) is None
    clocks.leave(0, 2)  # it asks in vain: the old life's place is not its to give up
    assert not clocks.membership_changed()
    clocks.leave(0, 1)
    assert told(clocks) == []
    assert clocks.enter(0, 2) is None
    assert told(clocks, clock=8) == [0]
    assert clocks.enter(0, 2) == 8


def test_another_coordinator_goes_on_with_the_same_clocks_and_tells_the_shards_anew() -> None:
    clocks, again = BoundedStalenessPolicy(), BoundedStalenessPolicy()
    for replica in (0, 1):
        clocks.enter(replica, 10 + replica)
    told(clocks, clock=3)
    clocks.leased(0, 4)
    clocks.enter(2, 12)
    again.restore(json.loads(json.dumps(clocks.state())))
    assert again.membership() == [(0, [0, 1, 2])]
    again.shards_acknowledged(again.member_epoch, 9)
    assert [again.enter(replica, 10 + replica) for replica in (0, 1, 2)] == [7, 3, 9]
    assert again.clock == clocks.clock == 7


def test_a_lease_without_a_clock_cannot_be() -> None:
    clocks = BoundedStalenessPolicy()
    clocks.enter(0, 1)
    with pytest.raises(AssertionError, match="before it had a clock"):
        clocks.leased(0, 4)
