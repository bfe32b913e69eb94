"""Training: warm start, lost answers, limits, clients with custom loops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.core.messages import EvaluationLease, ProgressReport, ResourceUsage, Stop, Wait
from coordinator.core.progress import OVER
from coordinator.core.states import DatasetSizes, State

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


# -- warm start ----------------------------------------------------------------------------------------------


def test_a_warm_start_by_loss(a_world: MakeWorld) -> None:
    world = a_world(strategy__warm_start={"loss": 0.5}).started()
    first, second = world.replicas
    first.work()
    first.train(tell=False)
    assert isinstance(second.ask(), Wait)
    world.machine.report_progress(0, first.incarnation, replace(first.totals, loss_sum=30 * 0.4), world.now_s)
    assert second.work().samples == 30


# -- lost answers --------------------------------------------------------------------------------------------


def test_lost_lease_answer_is_repeated_while_closing(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    lost = first.work()
    world.machine.stop("enough", world.now_s)
    assert first.work() == lost
    assert isinstance(second.ask(), Wait)
    world.run()
    assert world.state() is State.DONE


def test_a_report_on_a_foreign_lease_completes_no_lease(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    held = [replica.work().id for replica in (first, second)]
    first.train(pushes=1, tell=False)
    world.machine.report_progress(second.number, second.incarnation, first.totals, world.now_s)
    leases = world.machine.leases
    assert (leases.done, [leases.outstanding[lease].position for lease in held]) == (0, [0, 0])
    first.tell()
    assert (leases.done, [leases.outstanding[lease].position for lease in held]) == (10, [10, 0])


def test_lost_evaluation_answers_are_repeated(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30, "keep": "best"}).started()
    first, second = world.replicas
    first.work()
    first.train()
    lost = first.ask()
    assert isinstance(lost, EvaluationLease)
    assert first.ask() == lost
    answer = (first.number, first.incarnation, lost.id, 0.5, 0.8, world.now_s)
    names = [world.machine.evaluated(*answer), world.machine.evaluated(*answer)]
    assert names == ["best.0", "best.0"]
    assert world.machine.evaluated(second.number, second.incarnation, *answer[2:]) == ""
    world.settle()
    assert len(world.events("evaluation")) == 1


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


# -- clients -------------------------------------------------------------------------------------------------


def clients_only(a_world: MakeWorld) -> World:
    world = a_world(shape=DatasetSizes(0, 0, 0), data={"source": "none"}, limits={"samples": 100}, replicas=0)
    world.all_shards()
    return world


def test_client_job_ends_by_reported_samples(a_world: MakeWorld) -> None:
    world = clients_only(a_world)
    first, second = world.replica(kind="client"), world.replica(kind="client")
    world.settle()
    assert first.is_initialiser()
    first.initialise()
    world.settle()
    machine = world.machine
    once = ProgressReport(sequence=2, pushes=1, samples=40, steps=1, loss_sum=40.0, staleness_sum=2.0)
    machine.report_progress(first.number, first.incarnation, once, world.now_s)
    machine.report_progress(first.number, first.incarnation, once, world.now_s)
    assert machine.progress.samples == 40
    other = ProgressReport(sequence=1, pushes=1, samples=30, staleness_sum=4.0)
    machine.report_progress(second.number, second.incarnation, other, world.now_s)
    assert (machine.progress.samples, machine.progress.staleness_mean) == (70, 3.0)
    assert (machine.progress.samples_of(first.number), machine.progress.samples_of(second.number)) == (40, 30)
    twice = ProgressReport(sequence=3, pushes=2, samples=80, steps=2, loss_sum=80.0, staleness_sum=2.0)
    machine.report_progress(first.number, first.incarnation, twice, world.now_s)
    world.settle()
    assert machine.state is State.DONE
    assert machine.reason == "110 samples trained"
    assert world.exported is not None
    assert world.events("evaluation") == []


def test_dead_incarnations_keep_only_their_sums(a_world: MakeWorld) -> None:
    """What a coordinator holds, and writes for its successor, does not grow with the workers that were there."""
    world = a_world(shape=DatasetSizes(0, 0, 0), data={"source": "none"}, limits={"samples": 10**6}, replicas=0)
    world.all_shards()
    first = world.replica(kind="client")
    world.settle()
    first.initialise()
    world.settle()
    machine, kept = world.machine, []
    for life in range(1, 31):
        client = world.replica(kind="client")
        who = client.number, client.incarnation
        for pushes in (1, 2):
            totals = ProgressReport(sequence=pushes, pushes=pushes, samples=100 * pushes, steps=pushes, loss_sum=1.0)
            machine.report_progress(*who, totals, world.now_s)
            machine.record_usage(
                *who, ResourceUsage({"compute": 1.0 * pushes}, [0, pushes, 1], {"sent": 8 * pushes, "residual": 0.5})
            )
        (client.leave if life % 2 else client.die)()
        world.settle()
        kept.append(len(json.dumps([machine.progress.state(), machine.training.state(world.now_s)])))
    assert max(kept[10:]) - kept[9] < 20, "digits, and no rows"
    progress = machine.progress
    assert progress.samples == 30 * 200
    assert progress.replicas[1].seconds == {"compute": 60.0}
    assert progress.replicas[1].bytes == {"sent": 30 * 16}
    assert progress.stale() == [0, 60, 30]
    assert progress.residual() == progress.residual({OVER, *machine.members.dead}) == 15.0


def test_report_of_dead_replica_is_dropped(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.train(pushes=1)
    second.work()
    second.train(pushes=1)

    training = world.machine.training
    assert training.reports.last == {first.incarnation: first.totals, second.incarnation: second.totals}
    first.die()
    world.settle()
    assert training.reports.last == {second.incarnation: second.totals}
    assert set(training.leases.holders()) == {second.incarnation}


def test_a_job_of_clients_has_no_leases(a_world: MakeWorld) -> None:
    world = clients_only(a_world)
    client, replica = world.replica(kind="client"), world.replica()
    world.settle()
    assert client.is_initialiser()
    client.initialise()
    world.settle()
    assert isinstance(replica.ask(), Wait)
    assert isinstance(client.ask(), Stop)
