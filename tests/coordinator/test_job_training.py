"""While a job trains: warm start, deaths, lost answers, evaluations, sets, limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coordinator.actions import Fence, TakeSnapshot
from coordinator.states import Evaluate, Shape, State, Stop, Told, Wait
from dbelief.errors import Refused
from dbelief.work import Lease

if TYPE_CHECKING:
    from tests.coordinator.conftest import World

MakeWorld = Callable[..., "World"]


def test_every_sample_of_every_epoch_is_trained_once(a_world: MakeWorld) -> None:
    world = a_world().started().run()
    assert world.state() is State.DONE
    assert world.machine.reason == "200 samples trained"
    assert (world.applied() == 1).all()
    progress = world.machine.progress
    assert (progress.samples, progress.steps, progress.pushes) == (200, 20, 20)
    assert progress.samples_of(0) + progress.samples_of(1) == 200
    assert world.machine.epoch == 2.0


@pytest.mark.parametrize(("n_fetch", "n_push", "literal"), [(1, 3, False), (2, 2, False), (1, 3, True)])
def test_a_push_of_several_mini_batches_counts_them_all(
    a_world: MakeWorld, n_fetch: int, n_push: int, literal: bool
) -> None:
    world = a_world(strategy__n_fetch=n_fetch, strategy__n_push=n_push, strategy__literal=literal).started().run()
    assert (world.applied() == 1).all()
    assert world.machine.progress.steps == 20
    assert world.machine.progress.pushes < 20


# -- warm start ----------------------------------------------------------------------------------------------


def test_one_replica_warms_up_alone_and_the_others_are_released_once(a_world: MakeWorld) -> None:
    world = a_world(strategy__warm_start={"samples": 50}).started()
    first, second = world.replicas
    assert first.work().samples == 30
    assert isinstance(second.ask(), Wait)
    first.train()
    assert first.work().samples == 20, "not more than the warm start has left"
    first.train(pushes=1)
    assert isinstance(second.ask(), Wait)
    first.train()
    assert second.work().samples == 30
    first.work()
    world.settle()
    assert world.events("warm_start") == [{"samples": 50}]


def test_a_dead_warm_replica_is_replaced(a_world: MakeWorld) -> None:
    world = a_world(strategy__warm_start={"samples": 50}).started()
    first, second = world.replicas
    first.work()
    first.train(pushes=1)
    first.die()
    third = world.replica()
    world.settle()
    lease = second.work()
    assert (lease.start, lease.stop) == (10, 30)
    assert isinstance(third.ask(), Wait)
    second.train()
    assert second.work().samples == 20
    second.train()
    assert third.work().samples == 30
    assert (world.applied()[:, :50] == 1).all()


def test_a_warm_start_by_loss(a_world: MakeWorld) -> None:
    world = a_world(strategy__warm_start={"loss": 0.5}).started()
    first, second = world.replicas
    first.work()
    first.train(tell=False)
    assert isinstance(second.ask(), Wait)
    world.machine.trained(0, first.incarnation, Told(1, 3, 30, 3, 30 * 0.4, 0.0), world.now_s)
    assert second.work().samples == 30


# -- deaths --------------------------------------------------------------------------------------------------


def test_a_dead_replicas_lease_goes_to_another_from_where_all_segments_had_it(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.train(pushes=1)
    assert not first.push(only=3)
    first.die()
    world.settle()
    assert world.did(Fence) == [Fence(first.number, first.incarnation)]
    assert world.machine.pushes_twice == 1
    lease = second.work()
    assert (lease.start, lease.stop) == (10, 30)
    with pytest.raises(Refused, match="fenced"):
        first.push()
    world.run()
    again = (world.applied() - 1).sum(axis=1)
    assert again.tolist() == [10, 10, 10, 0], "the push that three segments had was made again"
    assert (world.applied().min(axis=0) == 1).all()
    assert world.machine.progress.samples == 200
    assert world.machine.members_lost == 1


def test_what_the_ledgers_know_and_the_dead_one_never_told_counts(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(tell=False)
    assert world.machine.progress.samples == 0
    first.die()
    world.settle()
    assert world.machine.progress.samples == world.machine.progress.samples_of(first.number) == 30
    assert world.machine.pushes_twice == 0


def test_the_job_does_not_end_while_a_dead_ones_last_lease_is_not_known(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started()
    first, second = world.replicas
    first.work()
    second.work()
    first.train(pushes=1)
    first.die()
    second.train()
    assert world.state() is State.READY
    assert isinstance(second.ask(), Wait)
    world.settle()
    assert second.work().samples == 20


def test_one_who_leaves_gives_back_what_it_has_not_done(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.train(pushes=2)
    first.leave("asked to end")
    world.settle()
    assert second.work().start == 20
    assert world.machine.members_lost == 0
    assert world.events("member")[-1] == {
        "role": "replica",
        "id": first.number,
        "what": "left",
        "reason": "asked to end",
        "name": f"r{first.token}",
    }


def test_the_given_up_are_told_so_and_what_they_tell_is_not_heard(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(pushes=1, tell=False)
    first.die()
    assert not world.machine.beat("replica", first.number, first.incarnation, world.now_s)
    first.tell()
    assert world.machine.progress.samples == 0
    work = first.ask()
    assert isinstance(work, Stop)
    assert "was given up" in work.reason


def test_a_restarted_replica_takes_its_number_again_and_is_a_new_life(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(pushes=1)
    first.die()
    heir = world.replica(wish=first.number)
    assert heir.number == first.number
    assert heir.incarnation > first.incarnation
    world.settle()
    heir.work()
    heir.train()
    assert world.machine.progress.samples_of(heir.number) == 30
    assert world.machine.progress.samples == 30


def test_nobody_dies_of_the_coordinators_own_sleep(a_world: MakeWorld) -> None:
    world = a_world().started()
    world.tick(1.0)
    world.now_s += 60.0
    world.machine.tick(world.now_s)
    assert world.state() is State.READY
    assert len(world.machine.members.alive("replica", "shard")) == 4


def test_a_dead_shard_ends_the_job_in_one_line(a_world: MakeWorld) -> None:
    world = a_world().started()
    world.shard_members.pop()
    world.tick(6.0)
    assert world.state() is State.FAILED
    reason = world.machine.reason
    assert reason.startswith("shard 1 (s")
    assert reason.endswith("died: silent for 5.5 s; its part of the parameters is gone")
    assert "\n" not in reason
    assert world.machine.members_lost == 1
    world.settle()
    assert world.finished
    assert all(isinstance(r.ask(), Stop) for r in world.replicas)


def test_without_any_replica_for_too_long_the_job_fails(a_world: MakeWorld) -> None:
    world = a_world().started(replicas=1)
    world.replicas[0].leave()
    world.tick(59.0)
    assert world.state() is State.READY
    late = world.replica()
    late.leave()
    world.tick(59.0)
    assert world.state() is State.READY, "patience is renewed by everyone who comes"
    world.tick(2.0)
    assert world.machine.reason == "no replica for 60 s; waiting for: a replica to join"


# -- lost answers --------------------------------------------------------------------------------------------


def test_a_lease_whose_answer_was_lost_is_given_again(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    lost = first.work()
    assert first.work() == lost
    assert second.work().id != lost.id
    world.run()
    assert (world.applied() == 1).all()


def test_a_lease_whose_answer_was_lost_is_given_again_while_the_job_closes(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    lost = first.work()
    world.machine.stop("enough", world.now_s)
    assert first.work() == lost
    assert isinstance(second.ask(), Wait)
    world.run()
    assert world.state() is State.DONE


def test_a_report_that_came_twice_counts_once(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(pushes=2)
    first.tell()
    assert world.machine.progress.samples == 20
    told = first.told
    first.train()
    first.tell()
    world.machine.trained(first.number, first.incarnation, told, world.now_s)
    assert world.machine.progress.samples == 30


def test_nobody_can_tell_of_anothers_lease(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    second.work()
    first.train(pushes=1, tell=False)
    world.machine.trained(second.number, second.incarnation, first.told, world.now_s)
    assert world.machine.progress.samples == 0


def test_an_evaluation_whose_answers_were_lost_is_told_again(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30, "keep": "best"}).started()
    first, second = world.replicas
    first.work()
    first.train()
    lost = first.ask()
    assert isinstance(lost, Evaluate)
    assert first.ask() == lost
    answer = (first.number, first.incarnation, lost.id, 0.5, 0.8, world.now_s)
    names = [world.machine.evaluated(*answer), world.machine.evaluated(*answer)]
    assert names == ["best.0", "best.0"]
    assert world.machine.evaluated(second.number, second.incarnation, *answer[2:]) == ""
    world.settle()
    assert len(world.events("evaluation")) == 1


# -- evaluation ----------------------------------------------------------------------------------------------


def evaluating(a_world: MakeWorld, **changes: object) -> World:
    """A job whose first replica holds the evaluation at 30 samples; the second trains on."""
    options = {"evaluate": {"every": 30, "keep": "best"}, **changes}
    world = a_world(**options).started()
    first, _ = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), Evaluate)
    return world


def test_an_evaluation_is_a_lease_like_any_other(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    assert first.evaluation is not None
    assert (first.evaluation.set, first.evaluation.vector, first.evaluation.samples) == ("validation", "w", 30)
    assert isinstance(second.ask(), Lease)
    states = {m.number: m.state for m in world.machine.members.alive("replica")}
    assert states == {first.number: "evaluating", second.number: "training"}


def test_the_evaluation_of_a_dead_replica_is_given_to_another(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    first.die()
    work = second.ask()
    assert isinstance(work, Evaluate)
    assert second.evaluate() == "best.0"
    assert first.evaluation is not None
    lease = first.evaluation.id
    assert world.machine.evaluated(first.number, first.incarnation, lease, 0.1, 0.99, world.now_s) == ""
    assert world.machine.progress.best is not None
    assert world.machine.progress.best.accuracy == 0.8


def test_the_best_parameters_are_kept_as_they_were_evaluated(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    assert first.evaluate(0.5, 0.8) == "best.0"
    second.work()
    second.train()
    assert isinstance(second.ask(), Evaluate)
    assert second.evaluate(0.6, 0.7) == ""
    assert world.vector("best.0").sum() == 4 * 30
    assert world.machine.progress.best is not None
    assert world.machine.progress.best.samples == 30


def test_no_evaluation_begins_while_the_best_parameters_are_being_stored(a_world: MakeWorld) -> None:
    """Two at a time would be stored under one name."""
    world = evaluating(a_world)
    first, second = world.replicas
    assert first.evaluate(0.5, 0.8, store=False) == "best.0"
    for _ in range(3):
        second.work()
        second.train()
    assert isinstance(second.ask(), Lease)
    assert world.machine.progress.best is None


def test_what_a_dead_replica_did_not_store_whole_is_evaluated_again_when_it_is_fenced(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    assert first.evaluate(0.5, 0.8, store=False) == "best.0"
    first.die()
    assert isinstance(second.ask(), Lease), "it might still write"
    second.train()
    world.settle()
    assert isinstance(second.ask(), Evaluate)
    assert second.evaluate(0.5, 0.8) == "best.0"
    assert world.machine.progress.best is not None


def test_an_overdue_evaluation_is_made_up_for(a_world: MakeWorld) -> None:
    world = evaluating(a_world)
    first, second = world.replicas
    for _ in range(2):
        second.work()
        second.train()
    first.evaluate()
    assert isinstance(second.ask(), Evaluate)


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
    world.machine.trained(0, first.incarnation, Told(1, 3, 30, 3, math.nan, 0.0), world.now_s)
    assert world.machine.reason == "diverged: the training loss is nan after 30 samples; try a lower rate"
    world.settle()
    assert world.finished


def test_a_job_without_validation_data_never_evaluates_on_it(a_world: MakeWorld) -> None:
    world = a_world(shape=Shape(100, 0, 30), evaluate={"every": 10}).started().run()
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


def test_a_set_is_not_begun_while_the_best_parameters_may_be_stored(a_world: MakeWorld) -> None:
    world = evaluating(a_world, snapshots={"every_s": 30.0})
    world.tick(40.0)
    world.settle()
    assert len(world.did(TakeSnapshot)) == 1
    world.replicas[0].evaluate()
    world.settle()
    assert len(world.did(TakeSnapshot)) == 2
    assert world.disk["000000000030-0002"].state["progress"]["best"]["vector"] == "best.0"


def test_best_parameters_are_not_evaluated_while_a_set_is_written(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30, "keep": "best"}, snapshots={"every_s": 30.0}).started()
    world.tick(31.0)
    first, second = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), Lease)
    world.settle()
    assert isinstance(second.ask(), Evaluate)


def test_where_nothing_is_kept_sets_and_evaluations_do_not_wait_for_each_other(a_world: MakeWorld) -> None:
    world = evaluating(a_world, evaluate={"every": 30, "keep": "last"}, snapshots={"every_s": 30.0})
    world.tick(40.0)
    world.settle()
    assert len(world.did(TakeSnapshot)) == 2


# -- limits --------------------------------------------------------------------------------------------------


def test_the_wall_limit_counts_from_the_start_of_training(a_world: MakeWorld) -> None:
    world = a_world(limits={"wall_s": 50.0})
    world.tick(40.0)
    world.started()
    for replica in world.replicas:
        replica.work()
    world.tick(49.0)
    assert world.state() is State.READY
    world.tick(1.0)
    assert world.state() is State.CLOSING
    assert world.machine.reason == "wall time 50 s reached"


def test_the_wall_limit_holds_from_a_clock_at_zero_too(a_world: MakeWorld) -> None:
    world = a_world(limits={"wall_s": 50.0})
    world.now_s = 0.0
    world.started()
    world.tick(50.0)
    assert world.state() is State.CLOSING


@pytest.mark.parametrize(
    ("limits", "score", "reason"),
    [
        ({"validation_accuracy": 0.9}, (0.5, 0.92), "validation accuracy 0.9200 reached its target 0.9"),
        ({"validation_loss": 0.5}, (0.45, None), "validation loss 0.45 reached its target 0.5"),
        ({"patience": 2}, (0.5, 0.8), "no better validation result for 2 evaluations"),
    ],
)
def test_an_early_stop_says_why(
    a_world: MakeWorld, limits: dict[str, float], score: tuple[float, float | None], reason: str
) -> None:
    world = a_world(limits={"epochs": 20, **limits}, evaluate__every=30)
    world.score = lambda lease: score
    world.started().run()
    assert world.state() is State.DONE
    assert world.machine.reason == reason
    assert world.machine.progress.samples < 2_000


# -- clients -------------------------------------------------------------------------------------------------


def clients_only(a_world: MakeWorld) -> World:
    world = a_world(shape=Shape(0, 0, 0), data={"source": "none"}, limits={"samples": 100}, replicas=0)
    world.all_shards()
    return world


def test_a_job_of_clients_ends_by_what_they_tell(a_world: MakeWorld) -> None:
    world = clients_only(a_world)
    first, second = world.replica(kind="client"), world.replica(kind="client")
    world.settle()
    assert first.is_initialiser()
    first.initialise()
    world.settle()
    machine = world.machine
    machine.trained(first.number, first.incarnation, Told(0, 1, 40, 1, 40.0, 2.0), world.now_s)
    machine.trained(first.number, first.incarnation, Told(0, 1, 40, 1, 40.0, 2.0), world.now_s)
    assert machine.progress.samples == 40
    machine.trained(second.number, second.incarnation, Told(0, 1, 30, 0, 0.0, 4.0), world.now_s)
    assert (machine.progress.samples, machine.progress.staleness_mean) == (70, 3.0)
    assert (machine.progress.samples_of(first.number), machine.progress.samples_of(second.number)) == (40, 30)
    machine.trained(first.number, first.incarnation, Told(0, 2, 80, 2, 80.0, 2.0), world.now_s)
    world.settle()
    assert machine.state is State.DONE
    assert machine.reason == "110 samples trained"
    assert world.exported is not None
    assert world.events("evaluation") == []


def test_a_job_of_clients_has_no_leases(a_world: MakeWorld) -> None:
    world = clients_only(a_world)
    client, replica = world.replica(kind="client"), world.replica()
    world.settle()
    assert client.is_initialiser()
    client.initialise()
    world.settle()
    assert isinstance(replica.ask(), Wait)
    assert isinstance(client.ask(), Stop)


def test_a_client_that_died_is_told_apart_from_its_heir(a_world: MakeWorld) -> None:
    world = clients_only(a_world)
    first = world.replica(kind="client")
    world.settle()
    assert first.is_initialiser()
    first.initialise()
    world.settle()
    world.machine.trained(first.number, first.incarnation, Told(0, 3, 30), world.now_s)
    first.die()
    world.settle()
    heir = world.replica(kind="client")
    world.machine.trained(heir.number, heir.incarnation, Told(0, 1, 10), world.now_s)
    assert world.machine.progress.samples == 40


def test_a_tick_of_the_machine_is_cheap_in_actions(a_world: MakeWorld) -> None:
    world = a_world().started()
    world.tick(20.0)
    assert world.machine.actions == []
