"""Crash of all processes, and another coordinator with new shards that resumes from the newest set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator.core.effects import MakeReady, Restore, TakeSnapshot
from coordinator.core.messages import EvaluationLease, ProgressReport
from coordinator.core.states import DatasetSizes, State
from coordinator.job.machine import JobMachine
from dbelief.core.layout import Layout
from dbelief.core.sample_form import SampleForm
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
    successor = interrupted(a_world).after_crash().started()
    assert [a.set_id for a in successor.did(Restore)] == ["000000000040-0002"]
    assert successor.did(MakeReady) == successor.did(TakeSnapshot) == []
    assert not any(replica.is_initialiser() for replica in successor.replicas)
    assert successor.machine.progress.samples == 40
    assert successor.applied().sum() == 4 * 40


def test_crash_and_resume_train_each_sample_once(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    for replica in world.replicas:  # what comes after the set is lost, and trained again
        replica.train()
    successor = world.after_crash().started().run()
    assert (successor.applied() == 1).all()
    assert successor.machine.progress.samples == 200
    assert sum(successor.machine.progress.samples_of(n) for n in range(2)) == 200
    assert successor.machine.training.pushes_twice == 0


def test_incarnation_fenced_during_set_is_not_retrained(a_world: MakeWorld) -> None:
    world = a_world(snapshots={"every_s": 5.5}).started()
    first, _ = world.replicas
    first.work()
    first.train(tell=False)
    first.die()  # the fence stands in the queue before the set, and the set began before it was carried out
    kinds = [type(a).__name__ for a in world.machine.actions if type(a).__name__ in ("Fence", "TakeSnapshot")]
    assert kinds == ["Fence", "TakeSnapshot"]
    world.settle()
    successor = world.after_crash().started().run()
    assert (successor.applied() == 1).all()


def test_runs_that_resume_one_know_its_id(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    assert world.machine.initialization.first_run_id == world.machine.run_id
    world.machine.initialization.first_run_id = 4
    state = {**world.disk[max(world.disk)].state, "first_run_id": world.machine.set_state()["first_run_id"]}
    resumed = JobMachine(world.job, world.shape, ("s", state), run_id=5)
    assert (resumed.run_id, resumed.initialization.first_run_id) == (5, 4)


def test_shard_epochs_and_set_ids_go_on_rising(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    successor = world.after_crash().started()
    assert successor.machine.placement is not None
    assert {place.shard_epoch for place in successor.machine.placement.places} == {2}
    successor.machine.stop("enough", successor.now_s)  # before anything new was trained
    successor.settle()
    assert successor.state() is State.DONE
    assert list(successor.disk) == sorted(successor.disk)
    assert max(successor.disk) == "000000000040-0003"


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
    successor = world.after_crash().started().run()
    assert successor.exported is not None
    assert successor.exported[0] == "best.0"
    assert successor.exported[1].sum() == 4 * 60


def test_a_resumed_job_knows_how_long_it_has_taken_before(a_world: MakeWorld) -> None:
    world = a_world()
    assert world.machine.earlier_wall_s == 0.0
    state = {"leases": world.machine.leases.state(), "incarnations": 1, "sets": 1, "wall_s": 12.5}
    assert JobMachine(world.job, world.shape, ("s", state)).earlier_wall_s == 12.5
    del state["wall_s"]  # a set of before legs were added up
    assert JobMachine(world.job, world.shape, ("s", state)).earlier_wall_s == 0.0


def test_a_job_may_go_on_for_longer_than_was_planned(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started().run()
    longer = a_world(limits={"samples": 150}).job
    successor = world.after_crash(limits=longer.limits).started().run()
    assert successor.machine.progress.samples == 150
    assert (successor.applied() == 1).all()


def test_other_data_is_refused(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    set_id = max(world.disk)
    with pytest.raises(UserError, match=f"set {set_id}: was made of 100 training samples, and the job's data holds 90"):
        JobMachine(world.job, DatasetSizes(90, 20, 30), (set_id, world.disk[set_id].state))


def test_other_tables_are_refused(a_world: MakeWorld) -> None:
    world = interrupted(a_world)
    set_id, state = max(world.disk), world.disk[max(world.disk)].state
    assert state["tables"] == []
    with pytest.raises(UserError, match=f"set {set_id}: table 'user' is in it, and not in the job file"):
        JobMachine(world.job, world.shape, (set_id, {**state, "tables": [["user", 4, "sgd", 3, 7]]}))
    JobMachine(world.job, world.shape, (set_id, {name: value for name, value in state.items() if name != "tables"}))


def test_another_model_is_refused(a_world: MakeWorld, other_layout: Layout) -> None:
    successor = interrupted(a_world).after_crash()
    with pytest.raises(Rejected, match="another layout than the snapshot set that the job resumes from"):
        successor.replica(layout=other_layout)
    successor.started()


def test_other_names_of_classes_are_refused(a_world: MakeWorld) -> None:
    form = SampleForm((4,), 3, 3, 0.5, ("a", "b", "c"))
    world = interrupted(a_world)
    (set_id, state), sizes = (max(world.disk), world.disk[max(world.disk)].state), world.shape
    machine = JobMachine(world.job, sizes, (set_id, {**state, "samples": form.text}))
    for joined, names in ((1, ("a", "c", "b")), (2, None)):
        with pytest.raises(Rejected, match="this replica's data is not the job's: the names of the classes are"):
            machine.join("replica", joined, "r", "", 0.0, world.machine.layout, samples=replace(form, names=names))
    machine.join("replica", 3, "r", "", 0.0, world.machine.layout, samples=form)


def test_a_stop_while_the_set_is_loaded_stays_a_stop(a_world: MakeWorld) -> None:
    successor = interrupted(a_world).after_crash()
    successor.all_shards().replica()
    assert successor.machine.waiting_for() == "the snapshot set to load"
    successor.machine.stop("stopped by Ctrl-C", successor.now_s)
    successor.settle()
    assert successor.state() is State.FAILED
    assert successor.finished


def test_client_progress_resumes(a_world: MakeWorld) -> None:
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
    report = ProgressReport(sequence=5, pushes=4, samples=40, steps=4, loss_sum=40.0)
    world.machine.report_progress(client.number, client.incarnation, report, world.now_s)
    world.tick(31.0)
    world.settle()
    successor = world.after_crash().all_shards()
    successor.replica(kind="client")
    successor.settle()
    assert successor.state() is State.READY
    assert successor.machine.progress.samples == 40
    assert successor.machine.progress.samples_of(client.number) == 40


def test_synchronous_job_resumes_at_an_unreached_clock(a_world: MakeWorld) -> None:
    world = a_world(strategy__staleness=0, snapshots={"every_s": 30.0}).started()
    for _ in range(3):
        for replica in world.replicas:
            replica.turn()
        world.settle()
    for replica in world.replicas:
        replica.push()
    world.tick(31.0)
    world.settle()
    successor = world.after_crash().started(replicas=1)
    successor.settle()
    assert isinstance(successor.replicas[0].ask(), object)
    assert successor.machine.waiting_for() == "replicas (1 of 2 joined)", "it begins again with all of them"
    successor.replica()
    successor.run()
    assert successor.state() is State.DONE
    assert np.all(successor.vector()[:, :200] > 0)
    assert successor.machine.progress.samples == 200
