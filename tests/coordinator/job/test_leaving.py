"""Shards that are asked to end: a snapshot set first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.core.effects import TakeSnapshot

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def test_shard_may_leave_after_a_set_begun_since(a_world: MakeWorld) -> None:
    world = a_world().started()
    machine, first = world.machine, world.shard_members[0]
    began = machine.training.snapshots.count
    assert not machine.may_leave(*first)
    world.tick()
    assert machine.training.snapshots.running
    assert not machine.may_leave(*first), "it is being written"
    world.settle()
    assert machine.may_leave(*first)
    assert machine.training.snapshots.count == began + 1
    world.tick(2.0)
    world.settle()
    assert machine.training.snapshots.count == began + 1, "one is enough"


def test_a_set_that_was_begun_before_is_not_enough(a_world: MakeWorld) -> None:
    world = a_world().started()
    machine, first = world.machine, world.shard_members[0]
    earlier = machine.training.snapshots.count
    machine.training.snapshots.wanted = True
    world.tick()
    assert machine.training.snapshots.running
    assert not machine.may_leave(*first)
    while machine.training.snapshots.count == earlier + 1:
        world.act()
        world.tick()
    assert len(world.did(TakeSnapshot)) >= 1
    assert not machine.may_leave(*first), "what came since is not in it"
    world.settle()
    assert machine.may_leave(*first)


def test_idle_or_stale_shards_may_leave_at_once(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    number, incarnation = world.shard_members[0]
    assert world.machine.may_leave(number, incarnation)
    world.replica()
    world.settle()
    world.replicas[0].initialise()
    world.settle()
    assert world.machine.may_leave(number, incarnation + 1000)
