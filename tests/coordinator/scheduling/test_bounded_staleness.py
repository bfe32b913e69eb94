"""Bounded staleness: membership and clocks of replicas that may differ by N clocks."""

from __future__ import annotations

import json

from coordinator.core.effects import SetMembership
from coordinator.scheduling.bounded_staleness import BoundedStalenessPolicy
from coordinator.scheduling.leases import Leases


def policy() -> BoundedStalenessPolicy:
    return BoundedStalenessPolicy(Leases(100, 100, 10, 10))


def told(clocks: BoundedStalenessPolicy, clock: int = 0) -> list[int]:
    """The shards are told, and answer with their highest clock; who is a member now."""
    (change,) = clocks.membership_changes()
    assert isinstance(change, SetMembership)
    clocks.shards_acknowledged(clocks.member_epoch, clock)
    ((first, members),) = change.rounds
    assert first == 0
    return list(members)


def test_idle_replica_rejoins_at_the_current_clock() -> None:
    clocks = policy()
    for replica in (0, 1):
        clocks.enter(replica, 10 + replica)
    assert told(clocks) == [0, 1]
    clocks.leased(0, 4)
    clocks.leave(0, 10)
    assert told(clocks) == [1]
    clocks.leave(0, 10)
    assert not clocks.membership_changes()
    assert clocks.enter(0, 10) is None
    assert told(clocks, clock=40) == [0, 1]
    assert clocks.enter(0, 10) == 40
    assert clocks.enter(1, 11) == 0, "who was a member keeps its clock"


def test_outdated_acknowledgement_gives_no_clock() -> None:
    clocks = policy()
    clocks.enter(0, 1)
    first = clocks.member_epoch
    clocks.membership_changes()
    clocks.enter(1, 2)
    clocks.shards_acknowledged(first, 7)
    assert clocks.enter(0, 1) == 7
    assert clocks.enter(1, 2) is None
    assert told(clocks, clock=9) == [0, 1]
    assert clocks.enter(1, 2) == 9


def test_new_incarnation_waits_for_fence_of_the_old() -> None:
    clocks = policy()
    clocks.enter(0, 1)
    told(clocks)
    assert clocks.enter(0, 2) is None
    clocks.leave(0, 2)  # it asks in vain: the old life's place is not its to give up
    assert not clocks.membership_changes()
    clocks.leave(0, 1)
    assert told(clocks) == []
    assert clocks.enter(0, 2) is None
    assert told(clocks, clock=8) == [0]
    assert clocks.enter(0, 2) == 8


def test_restored_policy_keeps_clocks_and_informs_shards() -> None:
    clocks, again = policy(), policy()
    for replica in (0, 1):
        clocks.enter(replica, 10 + replica)
    told(clocks, clock=3)
    clocks.leased(0, 4)
    clocks.enter(2, 12)
    again.restore(json.loads(json.dumps(clocks.state())))
    assert again.membership().rounds == ((0, (0, 1, 2)),)
    again.shards_acknowledged(again.member_epoch, 9)
    assert [again.enter(replica, 10 + replica) for replica in (0, 1, 2)] == [7, 3, 9]
    assert again.clock == clocks.clock == 7
