"""`staleness: 0`: blocks of leases on real shards, which hold each round until all its members pushed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.core.effects import SetMembership
from coordinator.core.messages import Wait
from coordinator.core.states import State
from dbelief.core.lease import DataLease

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def lockstep(a_world: MakeWorld, **changes: object) -> World:
    return a_world(strategy__staleness=0, **changes)


def everyone_asks(world: World) -> list[DataLease]:
    """All ask, the shards learn who takes part, all ask again; their leases."""
    for replica in world.replicas:
        if not replica.mute:
            assert isinstance(replica.ask(), Wait)
    world.settle()
    return [replica.work() for replica in world.replicas if not replica.mute]


def trained(world: World) -> np.ndarray:
    """Which samples reached all segments; in lockstep each counts by its share of its round."""
    return np.all(world.vector()[:, : world.machine.total] > 0, axis=0)  # type: ignore[no-any-return]


def test_training_starts_when_all_replicas_joined(a_world: MakeWorld) -> None:
    world = lockstep(a_world, replicas=3).started(replicas=2)
    first, second = world.replicas
    for _ in range(3):
        assert isinstance(first.ask(), Wait)
        assert isinstance(second.ask(), Wait)
        world.settle()
    assert world.machine.waiting_for() == "replicas (2 of 3 joined)"
    world.replica()
    assert world.machine.waiting_for() == ""
    assert {lease.clock for lease in everyone_asks(world)} == {0}


def test_missing_replica_ends_the_job_after_a_timeout(a_world: MakeWorld) -> None:
    world = lockstep(a_world).started(replicas=1)
    world.tick(59.0)
    assert world.state() is State.READY
    world.tick(3.0)
    assert world.machine.reason == "waited 60 s for replicas (1 of 2 joined)"


def test_no_lease_before_the_shards_know_the_members(a_world: MakeWorld) -> None:
    world = lockstep(a_world).started()
    for replica in world.replicas:
        replica.ask()
    assert all(isinstance(replica.ask(), Wait) for replica in world.replicas)
    world.settle()
    assert [type(replica.ask()) for replica in world.replicas] == [DataLease, DataLease]
    assert world.did(SetMembership) == [SetMembership(1, ((0, (0, 1)), (3, ())))]


def test_death_in_mid_block_lets_the_others_go_on(a_world: MakeWorld) -> None:
    world = lockstep(a_world).started()
    everyone_asks(world)
    first, second = world.replicas
    assert not first.push()
    assert second.push()
    assert first.push()
    assert not second.push()
    first.die()
    assert not second.push(), "the round still waits for the dead one"
    world.settle()
    assert second.push()
    second.tell()
    second.train()
    assert second.lease is None
    world.run()
    assert trained(world).all()
    assert world.machine.progress.samples == 200


def test_pending_round_push_of_dead_replica_is_retrained(a_world: MakeWorld) -> None:
    world = lockstep(a_world).started()
    everyone_asks(world)
    first, second = world.replicas
    assert not first.push()
    first.die()
    world.settle()
    assert world.machine.progress.samples == 0
    assert not world.vector().any()
    second.train()
    world.run()
    assert trained(world).all()
    assert world.machine.progress.samples == 200
    assert world.machine.training.pushes_twice == 0


def test_early_replacement_keeps_its_place_in_the_block(a_world: MakeWorld) -> None:
    """Its forerunner died between two blocks: its later fence must not remove the successor from the next."""
    world = lockstep(a_world).started()
    everyone_asks(world)
    first, second = world.replicas
    for _ in range(3):
        assert not first.push()
        assert second.push()
        assert first.push()
    for replica in (first, second):
        replica.tell()
        replica.lease = None
    second.die()
    successor = world.replica(requested=second.number)
    assert successor.number == second.number
    for replica in (first, successor):
        assert isinstance(replica.ask(), Wait)  # the block is formed with the successor; then comes the fence
    world.settle()
    assert isinstance(successor.ask(), DataLease)
    assert isinstance(first.ask(), DataLease)
    world.run()
    assert world.state() is State.DONE
    assert trained(world).all()


@pytest.mark.parametrize("known", [False, True])
def test_a_stop_hands_the_block_out_to_the_end(a_world: MakeWorld, known: bool) -> None:
    """Parts that stayed in the coordinator's hands would leave the others waiting for their rounds."""
    world = lockstep(a_world).started()
    for replica in world.replicas:
        replica.ask()
    if known:
        world.settle()
        world.replicas[0].work()
    world.machine.stop("enough", world.now_s)
    world.run()
    assert world.state() is State.DONE
    assert world.machine.progress.samples == 60


def test_an_early_stop_in_mid_block_finishes_the_block(a_world: MakeWorld) -> None:
    world = lockstep(a_world, evaluate={"every": 20}, limits={"epochs": 9, "validation_accuracy": 0.5}).started().run()
    assert world.state() is State.DONE
    assert world.machine.reason.startswith("validation accuracy")
    assert world.machine.progress.samples < 900


@pytest.mark.parametrize("seed", range(12))
def test_random_deaths_leave_nothing_untrained(a_world: MakeWorld, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = lockstep(a_world, replicas=3, evaluate={"every": 50, "keep": "best"}).started()
    for _ in range(3):
        for _ in range(rng.integers(1, 12)):
            for replica in rng.permutation(np.array(world.replicas, dtype=object)):
                replica.turn()
            if rng.random() < 0.7:
                world.act()
        alive = [replica for replica in world.replicas if not replica.mute]
        victim = alive[rng.integers(len(alive))]
        victim.die()
        if rng.random() < 0.7:
            world.replica(requested=victim.number if rng.random() < 0.7 else None)
        if not any(not replica.mute for replica in world.replicas):
            world.replica()
    world.run()
    assert world.state() is State.DONE, world.machine.reason
    assert trained(world).all()
    assert world.machine.progress.samples == 200
    clocks = [action.rounds[0][0] for action in world.did(SetMembership)]
    assert clocks == sorted(clocks)
