"""Evaluations and snapshot sets while a job trains, and their mutual exclusion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coordinator.core.effects import TakeSnapshot
from coordinator.core.messages import EvaluationLease, ProgressReport
from coordinator.core.states import DatasetSizes, State
from dbelief.core.lease import DataLease

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def evaluating(a_world: MakeWorld, **changes: object) -> World:
    """A job whose first replica holds the evaluation at 30 samples; the second trains on."""
    options = {"evaluate": {"every": 30, "keep": "best"}, **changes}
    world = a_world(**options).started()
    first, _ = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), EvaluationLease)
    return world


def test_evaluation_of_dead_replica_is_reassigned(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    first.die()
    work = second.ask()
    assert isinstance(work, EvaluationLease)
    assert second.evaluate() == "best.0"
    assert first.evaluation is not None
    lease = first.evaluation.id
    assert world.machine.evaluated(first.number, first.incarnation, lease, 0.1, 0.99, world.now_s) == ""
    assert world.machine.progress.best is not None
    assert world.machine.progress.best.accuracy == 0.8


def test_best_parameters_are_stored_as_evaluated(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    assert first.evaluate(0.5, 0.8) == "best.0"
    second.work()
    second.train()
    assert isinstance(second.ask(), EvaluationLease)
    assert second.evaluate(0.6, 0.7) == ""
    assert world.vector("best.0").sum() == 4 * 30
    assert world.machine.progress.best is not None
    assert world.machine.progress.best.samples == 30


def test_no_evaluation_starts_while_best_is_being_stored(a_world: MakeWorld) -> None:
    """Two at a time would be stored under one name."""
    world = evaluating(a_world)
    first, second = world.replicas
    assert first.evaluate(0.5, 0.8, store=False) == "best.0"
    for _ in range(3):
        second.work()
        second.train()
    assert isinstance(second.ask(), DataLease)
    assert world.machine.progress.best is None


def test_unstored_evaluation_is_repeated_after_the_fence(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    assert first.evaluate(0.5, 0.8, store=False) == "best.0"
    first.die()
    assert isinstance(second.ask(), DataLease), "it might still write"
    second.train()
    world.settle()
    assert isinstance(second.ask(), EvaluationLease)
    assert second.evaluate(0.5, 0.8) == "best.0"
    assert world.machine.progress.best is not None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_validation_loss_that_is_not_finite_ends_the_job(a_world: MakeWorld, loss: float) -> None:
    world = evaluating(a_world)
    assert world.replicas[0].evaluate(loss, 0.1) == ""
    assert world.state() is State.FAILED
    assert world.machine.reason == f"diverged: the validation loss is {loss} after 30 samples; try a lower rate"


def test_a_training_loss_that_is_not_finite_ends_the_job(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(tell=False)
    report = ProgressReport(lease=1, position=30, pushes=3, samples=30, steps=3, loss_sum=math.nan)
    world.machine.report_progress(0, first.incarnation, report, world.now_s)
    assert world.machine.reason == "diverged: the training loss is nan after 30 samples; try a lower rate"
    world.settle()
    assert world.finished


def test_no_validation_without_validation_data(a_world: MakeWorld) -> None:
    world = a_world(shape=DatasetSizes(100, 0, 30), evaluate={"every": 10}).started().run()
    assert [event["set"] for event in world.events("evaluation")] == ["test"]


# -- snapshot sets -------------------------------------------------------------------------------------------


def test_sets_are_written_on_time_and_one_at_a_time(a_world: MakeWorld) -> None:
    world = a_world(snapshots={"every_s": 30.0}).started()
    world.tick(29.0)
    world.settle()
    assert len(world.did(TakeSnapshot)) == 1
    world.tick(100.0)
    assert sum(isinstance(a, TakeSnapshot) for a in world.machine.actions) == 1
    world.settle()
    assert len(world.did(TakeSnapshot)) == 2
    world.tick(30.0)
    world.settle()
    assert [a.set_id for a in world.did(TakeSnapshot)] == [f"000000000000-{n:04d}" for n in (1, 2, 3)]


def test_between_sets_no_lease_that_is_done_is_remembered(a_world: MakeWorld) -> None:
    world = a_world().started()
    (first, second) = world.replicas
    first.work()
    first.train()
    held = second.work()
    assert [row[0]["id"] for row in world.machine.set_state()["leases"]["held"]] == [held.id]
