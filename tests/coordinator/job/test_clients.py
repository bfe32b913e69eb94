"""Clients on a job that has data: what they push counts towards its limits, and they evaluate where no replica is."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.core.ledgers import Applied
from coordinator.core.messages import EvaluationLease, ProgressReport, Stop, Wait, WorkRequest
from coordinator.core.states import State
from dbelief.core.push import PARAMETERS, LedgerRow
from tests.coordinator.replica import Replica
from tests.coordinator.world import World

MakeWorld = Callable[..., World]


def pushes(world: World, client: Replica, number: int, samples: int = 25) -> None:
    """So many pushes of a client, each of so many samples, told one after the other."""
    before = client.totals.pushes
    for count in range(before + 1, before + number + 1):
        client.sequences[PARAMETERS] = sequence = client.sequences.get(PARAMETERS, 0) + 1
        client.totals = ProgressReport(
            sequence=sequence, pushes=count, samples=count * samples, steps=count, loss_sum=1.0 * count * samples
        )
        world.machine.report_progress(client.number, client.incarnation, client.totals, world.now_s)
        world.settle()


def began(world: World) -> Replica:
    world.all_shards()
    client = world.replica(kind="client")
    world.settle()
    assert client.is_initialiser()
    client.initialise()
    world.settle()
    assert world.state() is State.READY
    return client


def test_a_push_after_the_ledgers_were_read_is_no_loss(a_world: MakeWorld) -> None:
    """At the end of a job a client may still push; one that is reported before the losses are counted was counted."""
    world = a_world(replicas=0)
    client = began(world)
    pushes(world, client, 4)  # after that of the initial values
    training = world.machine.training
    reached, ledgers = training.reached(), {client.incarnation: Applied(LedgerRow(5), 5)}
    pushes(world, client, 1)
    world.machine.exported(reached, ledgers, world.now_s)
    assert world.machine.progress.lost == 0
    world.machine.exported(training.reached(), ledgers, world.now_s)
    assert world.machine.progress.lost == 1, "the shards lack what was acknowledged before"


def test_client_job_respects_limits_evaluates_and_exports(a_world: MakeWorld) -> None:
    world = a_world(replicas=0, evaluate={"every": 100})
    client = began(world)
    assert isinstance(client.ask(), Stop), "there is nothing to evaluate yet"
    pushes(world, client, 4)
    assert world.machine.client_evaluates
    assert isinstance(client.ask(), EvaluationLease)
    client.evaluate()
    assert not world.machine.client_evaluates
    pushes(world, client, 4)
    assert world.state() is State.CLOSING
    for name in ("validation", "test"):
        work = client.ask()
        assert isinstance(work, EvaluationLease)
        assert work.set == name
        assert isinstance(
            world.machine.lease(WorkRequest(client.number, client.incarnation), world.now_s), EvaluationLease
        ), "as before"
        client.evaluate()
        world.settle()
    assert isinstance(client.ask(), Stop)
    assert world.state() is State.DONE
    assert world.machine.reason == "200 samples trained"
    assert [event["set"] for event in world.events("evaluation")] == ["validation", "validation", "test"]
    assert world.exported is not None


def test_client_waits_during_the_last_evaluations_of_others(a_world: MakeWorld) -> None:
    world = a_world(replicas=0)
    first = began(world)
    second, third = (world.replica(kind="client") for _ in range(2))
    pushes(world, first, 8)
    leases = first.ask(), second.ask()
    assert [lease.set for lease in leases if isinstance(lease, EvaluationLease)] == ["validation", "test"]
    assert isinstance(third.ask(), Wait)


def test_replicas_and_clients_share_the_sample_limit(a_world: MakeWorld) -> None:
    world = a_world(replicas=1)
    client = began(world)
    replica = world.replica()
    pushes(world, client, 4)
    world.machine.training.evaluations.request("validation", "w")
    assert not world.machine.client_evaluates
    assert isinstance(client.ask(), Stop), "the replica evaluates"
    world.take_over()
    world.settle()
    world.run()
    assert world.state() is State.DONE
    assert world.machine.reason == "200 samples trained"
    assert world.machine.progress.samples_of(replica.number) == 100
