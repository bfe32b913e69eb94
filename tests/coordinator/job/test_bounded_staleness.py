"""`staleness: N`: replicas that go at their own pace, and no further apart than the dial allows, on real shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.core.effects import SetMembership
from coordinator.core.messages import Assignment, Wait, Wants, WorkRequest
from coordinator.core.states import State
from dbelief.core.lease import DataLease

if TYPE_CHECKING:
    from tests.coordinator.replica import Replica
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def bounded(a_world: MakeWorld, staleness: int = 1, **changes: object) -> World:
    return a_world(strategy__staleness=staleness, **changes)


def begin(world: World, *replicas: Replica) -> None:
    """These become members and take up their first leases."""
    for replica in replicas:
        assert isinstance(replica.ask(), Wait)
    world.settle()
    for replica in replicas:
        replica.work()


def pushes(replica: Replica, most: int = 100) -> int:
    """Let a replica push as long as it may, lease after lease; how often."""
    made = 0
    while made < most:
        if replica.lease is None and not isinstance(replica.ask(), DataLease):
            break
        if not replica.push():
            break
        made += 1
        replica.tell()
        if replica.finished:
            replica.lease = None
    return made


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_fastest_replica_leads_by_staleness_plus_one(a_world: MakeWorld, staleness: int) -> None:
    world = bounded(a_world, staleness).started()
    fast, slow = world.replicas
    begin(world, fast, slow)
    assert pushes(fast) == staleness + 1, "a lease has three clocks: the bound holds from one to the next"
    assert pushes(slow, 1) == 1
    assert pushes(fast) == 1
    assert len(world.did(SetMembership)) == 2, "leases that follow each other are no news for the shards"
    world.run()
    assert world.state() is State.DONE
    np.testing.assert_array_equal(world.applied(), 1)


def test_the_first_to_come_begins_at_once(a_world: MakeWorld) -> None:
    world = bounded(a_world).started(replicas=1)
    begin(world, world.replicas[0])
    assert pushes(world.replicas[0], 5) == 5
    assert world.machine.waiting_for() == ""


def test_replica_without_data_blocks_no_other(a_world: MakeWorld) -> None:
    world = bounded(a_world, limits={"samples": 50}).started()
    first, second = world.replicas
    begin(world, first, second)
    assert second.lease is not None
    assert second.lease.samples == 20
    assert pushes(second) == 2
    assert isinstance(second.ask(), Wait)
    told = len(world.did(SetMembership))
    world.settle()
    for _ in range(3):
        assert isinstance(second.ask(), Wait)
        world.settle()
    assert len(world.did(SetMembership)) == told + 1, "asking in vain is no news"
    assert pushes(first) == 3
    world.run()
    np.testing.assert_array_equal(world.applied(), 1)


def ask_as_script(replica: Replica, wants: Wants) -> Assignment:
    """Report all that is acknowledged, and request one kind of work, as a script does."""
    replica.tell()
    request = WorkRequest(replica.number, replica.incarnation, last_lease=replica.last_lease, wants=wants)
    return replica.world.machine.lease(request, replica.world.now_s)


def blocked_by(waiting: Replica, wants: Wants, other: Replica) -> int:
    """A script requests work in vain; how often the other one may push of its lease of five clocks."""
    for _ in range(3):
        assert isinstance(ask_as_script(waiting, wants), Wait)
        waiting.world.settle()
    made = 0
    while other.lease is not None and not other.finished and other.push():
        made += 1
        other.tell()
    return made


def test_script_that_has_pushed_all_its_leases_blocks_no_other(a_world: MakeWorld) -> None:
    """No data is left: it makes no step until another replica fails."""
    world = bounded(a_world, strategy__lease=50, limits={"samples": 60}).started()
    first, second = world.replicas
    begin(world, first, second)
    second.train()
    assert blocked_by(second, Wants.TRAINING, first) == 5


@pytest.mark.parametrize("wants", [Wants.TRAINING, Wants.EVALUATION])
def test_script_without_steps_blocks_no_other_in_a_job_that_ends(a_world: MakeWorld, wants: Wants) -> None:
    world = bounded(a_world, strategy__lease=50).started()
    first, second = world.replicas
    begin(world, first, second)
    for _ in range(5):
        for replica in (first, second):
            replica.train(pushes=1)
    first.work()
    world.machine.stop("enough", world.now_s)
    assert blocked_by(second, wants, first) == 5


def test_stop_does_not_block_training_replicas(a_world: MakeWorld) -> None:
    world = bounded(a_world).started()
    first, second = world.replicas
    begin(world, first, second)
    assert pushes(first, 2) == 2
    assert pushes(second, 3) == 3
    world.machine.stop("enough", world.now_s)
    assert isinstance(second.ask(), Wait)
    world.run()
    assert world.state() is State.DONE
    assert world.machine.progress.samples == 60


def test_an_heir_that_comes_before_the_fence_waits_for_it(a_world: MakeWorld) -> None:
    world = bounded(a_world).started()
    first, second = world.replicas
    begin(world, first, second)
    assert pushes(first) == 2
    second.die()
    successor = world.replica(requested=second.number)
    assert isinstance(successor.ask(), Wait)
    world.settle()
    begin(world, successor)
    assert successor.lease is not None
    assert successor.lease.clock == 2
