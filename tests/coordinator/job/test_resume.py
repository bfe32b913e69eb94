"""Everything dies, and another coordinator with new shards goes on from the newest set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator.core.effects import MakeReady, Restore, TakeSnapshot
from coordinator.core.states import DatasetSizes, EvaluationLease, ProgressReport, State
from coordinator.job.machine import JobMachine
from dbelief.core.layout import Layout
from dbelief.errors import Rejected, UserError

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def interrupted(a_world: MakeWorld, pushes: int = 2, **changes: Any) -> World:
    """Both replicas are so far in their leases when a set is taken; then all goes down."""
    world = a_world(snapshots={"every_s": 30.0}, **changes).started()
    for replica in world.replicas:
        replica.work()
        replica.train(pushes=pushes)
    world.tick(31.0)
    world.settle()
    return world


def test_a_resumed_job_loads_the_set_and_trains_at_once(a_world: MakeWorld) -> None:
    heir = interrupted(a_world).after_crash().started()
    assert [a.set_id for a in heir.did(Restore)] == ["000000000040-0002"]
    assert heir.did(MakeReady) == heir.did(TakeSnapshot) == []
    assert not any(replica.is_initialiser() for replica in heir.replicas)
    assert heir.machine.progress.samples == 40
    assert heir.applied().sum() == 4 * 40


def test_everything_is_trained_once_over_both_lives_of_the_job(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    for replica in world.replicas:  # what comes after the set is lost, and trained again
        replica.train()
    heir = world.after_crash().started().run()
    assert (heir.applied() == 1).all()
    assert heir.machine.progress.samples == 200
    assert sum(heir.machine.progress.samples_of(n) for n in range(2)) == 200
    assert heir.machine.pushes_twice == 0


def test_pushes_that_only_some_segments_of_the_set_hold_are_made_again_and_counted(a_world: MakeWorld) -> None:
    world = a_world(snapshots={"every_s": 30.0}).started()
    first, _ = world.replicas
    first.work()

    def push() -> None:
        if first.told.pushes < 3:
            first.push()

    world.interleave = push
    world.tick(31.0)
    world.settle()
    stored = world.disk["000000000000-0002"].segments
    assert [int(stored[i].arrays["w"].sum()) for i in range(4)] == [10, 20, 30, 30]
    heir = world.after_crash().started()
    assert heir.machine.progress.samples == 10
    assert heir.machine.pushes_twice == 2
    heir.run()
    assert heir.applied().min() == 1
    assert (heir.applied() - 1).sum(axis=1).tolist() == [0, 10, 20, 20]


def test_a_lease_that_ended_while_the_set_was_written_is_not_forgotten(a_world: MakeWorld) -> None:
    world = a_world(snapshots={"every_s": 30.0}).started()
    first, _ = world.replicas
    first.work()
    parts = iter([lambda: None] * 4 + [first.train])
    world.interleave = lambda: next(parts)()
    world.tick(31.0)
    world.settle()
    heir = world.after_crash().started()
    assert heir.machine.progress.samples == 0
    assert heir.replicas[0].work().start == 0


def test_a_life_that_was_fenced_while_the_set_waited_its_turn_is_not_trained_again(a_world: MakeWorld) -> None:
    world = a_world(snapshots={"every_s": 5.5}).started()
    first, _ = world.replicas
    first.work()
    first.train(tell=False)
    first.die()  # the fence stands in the queue before the set, and the set began before it was carried out
    kinds = [type(a).__name__ for a in world.machine.actions if type(a).__name__ in ("Fence", "TakeSnapshot")]
    assert kinds == ["Fence", "TakeSnapshot"]
    world.settle()
    heir = world.after_crash().started().run()
    assert (heir.applied() == 1).all()


def test_new_lives_are_told_apart_from_all_that_the_set_knows(a_world: MakeWorld) -> None:
    """Else their first pushes would be taken for repetitions, and be lost without a word."""
    world = interrupted(a_world)
    old = {replica.incarnation for replica in world.replicas}
    heir = world.after_crash().started()
    assert min(replica.incarnation for replica in heir.replicas) > max(old)
    replica = heir.replicas[0]
    replica.work()
    before = heir.vector().sum()
    replica.train()
    assert heir.vector().sum() > before


def test_shard_epochs_and_set_ids_go_on_rising(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    heir = world.after_crash().started()
    assert heir.machine.placement is not None
    assert {place.shard_epoch for place in heir.machine.placement.places} == {2}
    heir.machine.stop("enough", heir.now_s)  # before anything new was trained
    heir.settle()
    assert heir.state() is State.DONE
    assert list(heir.disk) == sorted(heir.disk)
    assert max(heir.disk) == "000000000040-0003"


def test_the_best_parameters_outlive_their_job(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 60, "keep": "best"}, snapshots={"every_s": 30.0}, replicas=1).started()
    (replica,) = world.replicas
    for _ in range(2):
        replica.work()
        replica.train()
    assert isinstance(replica.ask(), EvaluationLease)
    replica.evaluate(0.1, 0.99)
    world.tick(31.0)
    world.settle()
    heir = world.after_crash().started().run()
    assert heir.exported is not None
    assert heir.exported[0] == "best.0"
    assert heir.exported[1].sum() == 4 * 60


def test_a_resumed_job_knows_how_long_it_has_taken_before(a_world: MakeWorld) -> None:
    world = a_world()
    assert world.machine.legs_s == 0.0
    state = {"leases": world.machine.leases.state(), "incarnations": 1, "sets": 1, "wall_s": 12.5}
    assert JobMachine(world.job, world.shape, ("s", state)).legs_s == 12.5
    del state["wall_s"]  # a set of before legs were added up
    assert JobMachine(world.job, world.shape, ("s", state)).legs_s == 0.0


def test_a_resumed_job_with_nothing_left_to_train_ends(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started().run()
    heir = world.after_crash().started().run()
    assert heir.state() is State.DONE
    assert heir.machine.progress.test is not None
    assert (heir.applied() == 1).all()


def test_a_job_may_go_on_for_longer_than_was_planned(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started().run()
    longer = a_world(limits={"samples": 150}).job
    heir = world.after_crash(limits=longer.limits).started().run()
    assert heir.machine.progress.samples == 150
    assert (heir.applied() == 1).all()


def test_a_job_goes_on_with_another_number_of_shards(a_world: MakeWorld) -> None:
    heir = interrupted(a_world).after_crash(shards=3).started()
    assert [len(shard.segments) for shard in heir.shards] == [1, 2, 1]
    assert heir.machine.set_state()["nominal_length"] == 1024
    heir.run()
    assert (heir.applied() == 1).all()


def test_other_data_is_refused(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    set_id = max(world.disk)
    with pytest.raises(UserError, match=f"set {set_id}: made of 100 training samples, and the job's data has 90"):
        JobMachine(world.job, DatasetSizes(90, 20, 30), (set_id, world.disk[set_id].state))


def test_another_model_is_refused(a_world: MakeWorld, other_layout: Layout) -> None:
    heir = interrupted(a_world).after_crash()
    with pytest.raises(Rejected, match="another layout than the snapshot set that the job goes on from"):
        heir.replica(layout=other_layout)
    heir.started()


def test_a_stop_while_the_set_is_loaded_stays_a_stop(a_world: MakeWorld) -> None:
    heir = interrupted(a_world).after_crash()
    heir.all_shards().replica()
    assert heir.machine.waiting_for() == "the snapshot set to load"
    heir.machine.stop("stopped by Ctrl-C", heir.now_s)
    heir.settle()
    assert heir.state() is State.FAILED
    assert heir.finished


def test_what_clients_told_goes_on_too(a_world: MakeWorld) -> None:
    world = a_world(
        shape=DatasetSizes(0, 0, 0),
        data={"source": "none"},
        limits={"samples": 100},
        replicas=0,
        snapshots={"every_s": 30.0},
    ).all_shards()
    client = world.replica(kind="client")
    world.settle()
    assert client.is_initialiser()
    client.initialise()
    world.settle()
    world.machine.report_progress(
        client.number, client.incarnation, ProgressReport(0, 4, 40, 4, 40.0, 0.0), world.now_s
    )
    world.tick(31.0)
    world.settle()
    heir = world.after_crash().all_shards()
    heir.replica(kind="client")
    heir.settle()
    assert heir.state() is State.READY
    assert heir.machine.progress.samples == 40
    assert heir.machine.progress.samples_of(client.number) == 40


def test_lockstep_goes_on_at_a_clock_that_no_segment_has_passed(a_world: MakeWorld) -> None:
    world = a_world(strategy__staleness=0, snapshots={"every_s": 30.0}).started()
    for _ in range(3):
        for replica in world.replicas:
            replica.turn()
        world.settle()
    for replica in world.replicas:
        replica.push()
    world.tick(31.0)
    world.settle()
    heir = world.after_crash().started(replicas=1)
    heir.settle()
    assert isinstance(heir.replicas[0].ask(), object)
    assert heir.machine.waiting_for() == "replicas (1 of 2 joined)", "it begins again with all of them"
    heir.replica()
    heir.run()
    assert heir.state() is State.DONE
    assert np.all(heir.vector()[:, :200] > 0)
    assert heir.machine.progress.samples == 200
