"""Samples that a replica has drawn and does not train: they are leased again at once, to be trained by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coordinator.core.states import State

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def test_skipped_samples_are_known_to_the_next_coordinator(a_world: MakeWorld) -> None:
    """Else it would count them as trained with the next push."""
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.skip(10, 20)
    world.take_over()
    assert list(world.machine.leases.returned) == [(0, 10, 20)]
    first.push()
    first.push()
    first.leave()
    world.settle()
    assert world.machine.progress.samples == world.machine.leases.done == 20, "as the ledgers say"
    assert second.work().samples == 10
    second.train()
    assert (world.applied()[:, :30] == 1).all()
    world.run()
    assert (world.applied() == 1).all()


def test_a_report_of_skipped_samples_that_comes_twice_counts_once(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    lease = first.work()
    first.skip(10, 20)
    again = second.work()
    for _ in range(2):
        world.machine.skip_samples(first.number, first.incarnation, [(lease.id, 10, 20)])
        world.take_over()
    assert not world.machine.leases.returned
    assert world.machine.leases.leased == 30
    assert (again.start, again.stop) == (10, 20)
    world.run()
    assert (world.applied() == 1).all()


def test_only_a_living_holder_skips_samples(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    lease = first.work()
    second.work()
    skipped = [(lease.id, 0, 30)]
    world.machine.skip_samples(second.number, second.incarnation, skipped)
    world.machine.skip_samples(first.number, second.incarnation, skipped)
    assert world.machine.leases.leased == 60
    first.train(pushes=1, tell=False)
    first.die()
    world.machine.skip_samples(first.number, first.incarnation, skipped)
    world.settle()
    assert list(world.machine.leases.returned) == [(0, 10, 30)]
    world.run()
    world.machine.skip_samples(second.number, second.incarnation, skipped)
    assert (world.applied() == 1).all()


@pytest.mark.parametrize("pushes", [0, 1])
def test_a_stop_does_not_wait_for_skipped_samples(a_world: MakeWorld, pushes: int) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.train(pushes=pushes)
    second.work()
    world.machine.stop("enough", world.now_s)
    first.skip(10 * pushes, 30)
    second.train()
    world.run()
    assert world.state() is State.DONE
    assert world.machine.progress.samples == 30 + 10 * pushes
    assert world.applied().sum() == 4 * (30 + 10 * pushes)
