"""Shards that die while a job runs and recover in other processes: exact losses, and nothing else is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.core.effects import AssignShards, Fence, RecoverShard, TakeSnapshot
from coordinator.core.progress import Best
from coordinator.core.states import ShutdownPhase, State
from dbelief.monitor.event_text import event_text

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def restart_shard(world: World, number: int) -> None:
    """Kill a shard; its process is started again under its name, before anyone has noticed."""
    name = next(m.name for m in world.machine.members.alive("shard") if m.number == number)
    world.kill_shard(number)
    assert world.shard(again=name, requested=number) == number


def ahead_of_the_newest_set(a_world: MakeWorld) -> World:
    """The first replica has finished a lease of 3 pushes; the newest set has 2 of them."""
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(pushes=2)
    world.machine.actions.append(world.machine.training.begin_set())
    world.settle()
    first.train()
    return world


def test_shard_recovers_from_newest_set_with_counted_losses(a_world: MakeWorld) -> None:
    world = ahead_of_the_newest_set(a_world)
    _, second = world.replicas
    second.work()
    second.train(pushes=1)
    restart_shard(world, 1)
    world.settle()
    world.run()
    assert world.state() is State.DONE
    applied = world.applied()
    assert (applied[:2] == 1).all(), "what the other shard holds is whole"
    gone = np.flatnonzero(applied[2] == 0)
    assert (applied[3] == applied[2]).all()
    assert len(gone) == 20, "one push of 10 samples of each replica came after the set"
    assert world.machine.progress.lost == 2
    assert world.machine.failures == {"shard 1": 1}


def test_losses_are_counted_where_their_pushers_fail_too(a_world: MakeWorld) -> None:
    world = ahead_of_the_newest_set(a_world)
    first, second = world.replicas
    second.work()
    second.train(pushes=1)
    restart_shard(world, 1)
    first.mute = second.mute = True
    world.tick(6.0)
    world.settle()
    world.replica()
    world.run()
    assert world.state() is State.DONE
    assert (world.applied()[2] == 0).sum() == 20
    assert world.machine.progress.lost == 2
    restored = world.events("shard_back")[-1]
    assert (restored["samples"], restored["of"]) == (20, 40)
    assert (event_text("shard_back", restored) or "").endswith(": it lacks samples 20 to 40")


def restored_between_two_leases(a_world: MakeWorld) -> World:
    """As `ahead_of_the_newest_set`, and shard 1 was restored from that set."""
    world = ahead_of_the_newest_set(a_world)
    restart_shard(world, 1)
    world.settle()
    return world


def lost(world: World) -> tuple[int, int]:
    """Pushes of 10 samples that are missing on shard 1, and those that are counted."""
    return int((world.applied()[2] == 0).sum()) // 10, world.machine.progress.lost


def test_a_loss_is_counted_where_its_pusher_fails_before_it_reports_it(a_world: MakeWorld) -> None:
    world = restored_between_two_leases(a_world)
    first, _ = world.replicas
    first.work()
    first.train(pushes=1, tell=False)  # the shard counts the loss, and the reply that says so is not reported
    first.die()
    world.settle()
    assert world.machine.progress.lost == 1
    assert lost(world.run()) == (1, 1)


def test_a_loss_is_counted_where_its_pusher_has_no_further_push(a_world: MakeWorld) -> None:
    world = restored_between_two_leases(a_world)
    first, second = world.replicas
    first.turn = lambda: first.leave("") if world.machine.over else None  # type: ignore[method-assign]
    second.work()
    assert lost(world.run()) == (1, 1)


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("pushes", [0, 3])
def test_a_loss_in_a_set_is_counted_where_the_job_is_resumed_from_it(
    reported: bool, pushes: int, a_world: MakeWorld
) -> None:
    world = restored_between_two_leases(a_world)
    first, _ = world.replicas
    first.work()
    first.train(pushes=pushes, tell=reported)
    world.machine.actions.append(world.machine.training.begin_set())
    world.settle()
    successor = world.after_crash().started()
    assert successor.machine.progress.lost == 1
    assert lost(successor.run()) == (1, 1)


def test_recovery_skips_a_damaged_snapshot_set(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    for _ in range(2):
        first.train(pushes=1)
        world.machine.actions.append(world.machine.training.begin_set())
        world.settle()
    before, newest = sorted(world.disk)[-2:]
    world.damaged = {newest}
    restart_shard(world, 1)
    world.settle()
    assert world.machine.recovery.set_id == before
    world.run()
    assert world.state() is State.DONE
    applied = world.applied()
    assert (applied[:2] == 1).all()
    assert (applied[2] == 0).sum() == 10 * world.machine.progress.lost > 0


def test_a_shard_is_restored_from_a_set_that_was_completed_after_it_failed(a_world: MakeWorld) -> None:
    world = ahead_of_the_newest_set(a_world)
    first, second = world.replicas
    before = max(world.disk)
    first.die()
    world.settle()
    second.work()
    second.train(pushes=1)
    world.machine.actions.append(world.machine.training.begin_set())
    at_each_segment = iter([lambda: None] * 4 + [lambda: restart_shard(world, 1)])
    world.interleave = lambda: next(at_each_segment, lambda: None)()  # the shard fails once all have written the set
    while max(world.disk) == before:
        world.act()
    newest = max(world.disk)
    del world.disk[before]  # as where the job keeps one set
    world.settle()
    restored = world.events("shard_back")[-1]
    assert (restored["set"], world.machine.recovery.set_id) == (newest, newest)
    world.replica()
    assert lost(world.run()) == (0, 0)


def test_replicas_wait_for_recovery_and_get_new_placement(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    before = world.machine.placement
    assert before is not None
    world.kill_shard(0)
    world.tick(6.0)
    assert not first.push()
    world.shard()
    assert world.machine.placement is before, "not before it is loaded"
    world.settle()
    placement = world.machine.placement
    assert placement is not None
    assert placement.epoch == before.epoch + 1
    assert placement.places[0].shard_epoch > before.places[0].shard_epoch
    assert placement.places[1] == before.places[1]
    assert first.push()


def test_postponed_fences_run_after_recovery(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    second.work()
    second.train(pushes=1)
    world.kill_shard(1)
    second.mute = True
    world.tick(6.0)
    world.settle()
    assert second.incarnation in world.machine.leases.holders(), "its ledger cannot be read yet"
    world.shard()
    world.settle()
    assert second.incarnation not in world.machine.leases.holders()
    assert world.did(RecoverShard)[-1].fenced == (second.incarnation,)
    assert world.did(Fence)
    first.work()
    world.run()
    assert (world.applied().sum(axis=1) >= 190).all()


def test_shard_death_before_first_set_repeats_initial_push(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    world.settle()
    replica.initialise()
    restart_shard(world, 1)
    world.settle()
    assert world.state() is State.INITIALISING
    assert replica.is_initialiser()
    replica.initialise()
    world.settle()
    assert world.state() is State.READY
    world.run()
    assert (world.applied() == 1).all()


def test_initial_values_that_a_failed_shard_acknowledged_are_pushed_again(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    world.settle()
    assert replica.is_initialiser()
    replica.initialise(segments=range(4))
    restart_shard(world, 1)
    assert not replica.is_initialiser(), "the placement names a shard that has failed"
    world.settle()
    assert replica.is_initialiser()
    world.machine.initialised(replica.incarnation, 1, world.now_s)
    world.settle()
    assert world.state() is State.INITIALISING
    replica.initialise()
    world.settle()
    assert world.state() is State.READY
    assert len(world.did(TakeSnapshot)) == 1


def test_the_first_set_is_not_taken_once_a_shard_has_lost_its_initial_values(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    world.settle()
    assert replica.is_initialiser()
    replica.initialise()
    restart_shard(world, 1)
    assert world.machine.abort_obsolete_set()
    assert world.machine.set_failed(world.now_s), "and the job does not end where its files were begun"


def test_shard_death_before_assignment_is_reassigned(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    restart_shard(world, 0)
    world.settle()
    assert len(world.did(AssignShards)) >= 1
    assert replica.is_initialiser()
    replica.initialise()
    world.settle()
    world.run()
    assert (world.applied() == 1).all()


def test_second_death_in_recovery_keeps_shard_unavailable(a_world: MakeWorld) -> None:
    world = a_world().started()
    restart_shard(world, 1)
    (revive,) = [action for action in world.machine.actions if isinstance(action, RecoverShard)]
    restart_shard(world, 1)
    world.machine.shard_recovered(revive, revive.set_id, {}, world.now_s)
    assert world.machine.recovery.unavailable == {1}
    world.settle()
    assert not world.machine.recovery.unavailable
    world.run()
    assert world.state() is State.DONE


def test_the_best_parameters_are_those_that_the_set_holds(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30, "keep": "best"})
    scores = iter([0.5, 0.4] + [0.9] * 50)
    world.score = lambda lease: (next(scores), None)
    world.started(1)
    (replica,) = world.replicas
    for _ in range(200):
        replica.turn()
        world.settle()
        if world.machine.progress.best is not None and world.machine.progress.best.loss == 0.4:
            break
    best = world.machine.progress.best
    assert best is not None
    assert best.vector == "best.1"
    restart_shard(world, 0)
    world.settle()
    assert world.machine.progress.best is None, "the only set was taken before the first evaluation"
    world.run()
    assert world.state() is State.DONE
    assert world.exported is not None


def test_an_evaluation_stored_while_a_shard_is_replaced_is_not_the_best(a_world: MakeWorld) -> None:
    """The failed incarnation still ran, and a replica stored the parameters there: the restored one lacks them."""
    world = a_world(evaluate={"every": 1_000, "keep": "best"}).started()
    world.replicas[0].work()
    restart_shard(world, 0)
    machine = world.machine
    machine.shutdown.phase, machine.shutdown.vector = ShutdownPhase.EXPORT, "best.0"
    machine.progress.best = Best("best.0", 0.1, None, 30)
    world.settle()
    assert not machine.recovery.unavailable
    assert machine.progress.best is None
    assert machine.shutdown.vector == "w", "the export is requested again, of what there is"
    assert not machine.shutdown.exports("best.0")


def test_an_export_requested_while_a_shard_is_unavailable_runs_after_its_recovery(a_world: MakeWorld) -> None:
    """The shard that was declared failed still ran, and wrote the last set; then its process ended."""
    world = a_world().started()
    machine = world.machine
    machine.close("enough samples", evaluate=False)
    world.tick()
    assert machine.shutdown.phase is ShutdownPhase.SNAPSHOT
    number, _ = world.shard_members.pop(1)
    world.tick(6.0)
    assert number in machine.recovery.unavailable
    while not machine.shutdown.exports("w"):
        assert world.act() is not None
    world.dead.add(number)
    world.settle()
    assert world.exported is None
    world.shard(requested=number)
    world.settle()
    assert world.state() is State.DONE
    assert world.exported is not None
    assert world.finished


@pytest.mark.parametrize(
    "step", [ShutdownPhase.CHOOSE, ShutdownPhase.SNAPSHOT, ShutdownPhase.EXPORT, ShutdownPhase.EVALUATE]
)
def test_a_shard_may_die_at_any_step_of_the_end(a_world: MakeWorld, step: ShutdownPhase) -> None:
    world = a_world(evaluate={"every": 50, "keep": "best"}).started()
    for _ in range(2_000):
        for move in (*(replica.turn for replica in world.replicas), lambda: world.tick(0.05), world.act):
            move()
            if world.state() is State.CLOSING and world.machine.shutdown.phase == step:
                break
        else:
            continue
        break
    assert world.machine.shutdown.phase == step
    restart_shard(world, 1)
    world.act()
    restart_shard(world, 0)
    world.run()
    assert world.state() is State.DONE, world.machine.reason
    assert world.exported is not None


@pytest.mark.parametrize("staleness", [None, 0, 2])
@pytest.mark.parametrize("seed", range(30))
def test_job_ends_with_counted_losses_after_any_deaths(a_world: MakeWorld, seed: int, staleness: int | None) -> None:
    draw = random.Random(seed)
    world = a_world(strategy__staleness=staleness, snapshots={"every_s": 0.5}, limits={"epochs": 4}).started()
    deaths = sorted(draw.sample(range(10, 120), 3))
    for turn in range(400):
        if world.machine.over:
            break
        if turn in deaths:
            what = draw.choice(["shard", "silent shard", "replica", "coordinator"])
            if what == "shard":
                restart_shard(world, draw.randrange(2))
            elif what == "silent shard":
                world.kill_shard(draw.randrange(2))
                world.tick(6.0)
                world.shard()
            elif what == "replica":
                draw.choice([r for r in world.replicas if not r.mute] or world.replicas).die()
                if not world.machine.over:
                    world.replica()
            else:
                world.take_over()
        for replica in list(world.replicas):
            if draw.random() < 0.7:
                replica.turn()
        world.tick(0.05)
        if draw.random() < 0.8:
            world.act()
    if all(replica.mute for replica in world.replicas) and not world.machine.over:
        world.replica()
    world.run()
    assert world.state() is State.DONE, world.machine.reason
    if staleness == 0:  # a round's mean gives each replica its share
        return
    applied = world.applied()
    twice = world.machine.training.pushes_twice
    missing = (applied == 0).sum(axis=1)
    assert (applied.max(axis=1) <= 1 + twice).all()
    if not any(died.startswith("shard") for died in world.machine.failures):
        assert (missing == 0).all()
        assert (applied.sum(axis=1) <= 400 + 10 * twice).all()


def test_failed_periodic_snapshot_does_not_end_training(a_world: MakeWorld) -> None:
    world = a_world(snapshots={"every_s": 1.0}).started()
    world.tick(2.0)
    (action,) = [a for a in world.machine.actions if isinstance(a, TakeSnapshot)]
    world.machine.actions.remove(action)
    assert world.machine.set_failed(world.now_s)
    world.tick(2.0)
    world.run()
    assert world.state() is State.DONE
