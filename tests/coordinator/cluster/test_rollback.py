"""A batch method rolls back to a snapshot set: nothing else runs from the death to the last shard's answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator.core.effects import RecoverShard, RollBack, RunProgram, TakeSnapshot
from coordinator.core.messages import BundleLease, EvaluationLease, Wait, WorkRequest
from coordinator.core.states import DatasetSizes, State
from coordinator.sandblaster.lbfgs_driver import Phase
from dbelief.core.push import Push, Pusher
from dbelief.errors import Moved
from ps_server.programs import ProgramExecutor
from tests.coordinator.cluster.test_recovery import restart_shard as restart
from tests.coordinator.scheduling.test_batch_method import SHAPE, STRATEGY, Batch
from tests.coordinator.world import World, make_job

if TYPE_CHECKING:
    from collections.abc import Iterator

MakeWorld = Callable[..., World]
NO_SETS = {"every_s": None}
EVERY_THREE = {"every_s": None, "every_iterations": 3}


@pytest.fixture(scope="module")
def undisturbed(a_world: MakeWorld) -> dict[int, float]:
    return losses(Batch(a_world).run())


def losses(batch: Batch) -> dict[int, float]:
    """By iteration; of one that was made again, the last."""
    return {row["iteration"]: row["loss"] for row in batch.world.events("iteration")}


def turn(batch: Batch) -> None:
    for replica in [one for one in batch.world.replicas if not one.mute]:
        batch.step(replica)
    batch.world.tick(0.01)


def until(batch: Batch, happened: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if happened():
            return
        turn(batch)
        batch.world.settle()
    raise AssertionError("it never happened")


def in_pass(batch: Batch, iterations: int) -> None:
    until(batch, lambda: bool(batch.method.iterations == iterations and batch.method.phase is Phase.TRIAL_PASS))


def carried_out(world: World) -> Iterator[Any]:
    while (action := world.act()) is not None:
        yield action


def until_revived(world: World) -> None:
    assert any(isinstance(action, RecoverShard) for action in carried_out(world))


def test_another_coordinator_goes_back_as_well(a_world: MakeWorld, undisturbed: dict[int, float]) -> None:
    """The one that died had brought the shard back, and not all shards to its set."""
    batch = Batch(a_world, snapshots=EVERY_THREE)
    in_pass(batch, 5)
    restart(batch.world, 1)
    until_revived(batch.world)
    batch.world.take_over()
    assert losses(batch.run()) == pytest.approx(undisturbed)
    assert [row["iterations"] for row in batch.world.events("rolled_back")] == [2]


def test_takeover_rolls_back_before_any_program(a_world: MakeWorld, undisturbed: dict[int, float]) -> None:
    """The shard died in the midst of a program."""
    batch = Batch(a_world, snapshots=EVERY_THREE)
    world = batch.world
    in_pass(batch, 5)
    while batch.method.phase is Phase.TRIAL_PASS:
        turn(batch)
    restart(world, 1)
    world.take_over()
    order = [type(action) for action in carried_out(world)]
    assert order.index(RecoverShard) < order.index(RollBack)
    assert RunProgram not in order[: order.index(RollBack)]
    assert losses(batch.run()) == pytest.approx(undisturbed)


def test_no_set_is_written_of_two_times(a_world: MakeWorld, undisturbed: dict[int, float]) -> None:
    batch = Batch(a_world, snapshots=NO_SETS)
    world = batch.world
    in_pass(batch, 5)
    world.machine.actions.append(world.machine.training.begin_set())
    restart(world, 1)
    before = len(world.done)
    world.settle()
    assert TakeSnapshot not in [type(action) for action in world.done[before:]]
    assert world.machine.recovery.set_id == min(world.disk), "the first one, of the initial values"
    assert losses(batch.run()) == pytest.approx(undisturbed)


def test_a_set_that_is_begun_again_during_a_rollback_is_aborted(
    a_world: MakeWorld, undisturbed: dict[int, float]
) -> None:
    """Its folder was used by an earlier attempt; that is found after the failure, and the method's last set is due."""
    batch = Batch(a_world, snapshots=NO_SETS)
    machine = batch.world.machine
    in_pass(batch, 5)
    action = machine.training.begin_set()
    restart(batch.world, 1)
    machine.retake_set()
    machine.postpone(action)
    assert not machine.training.snapshots.running
    assert losses(batch.run()) == pytest.approx(undisturbed)


def test_nothing_is_handed_out_or_taken_in_meanwhile(a_world: MakeWorld) -> None:
    shape = DatasetSizes(train=100, validation=20, test=0)
    fields = {"limits": {"epochs": 500}, "shards": 2, "replicas": 3, "evaluate": {"every": 10**6, "keep": "best"}}
    batch = object.__new__(Batch)
    batch.world, batch.holds = a_world(shape, strategy=STRATEGY, **fields).started(), {}
    world, machine = batch.world, batch.world.machine
    in_pass(batch, 4)
    one, two = world.replicas[:2]
    batch.holds.pop(one.incarnation, None)
    machine.training.evaluations.request("validation", "w")
    lease = machine.lease(WorkRequest(one.number, one.incarnation), world.now_s)
    if isinstance(lease, BundleLease):
        lease = machine.lease(WorkRequest(one.number, one.incarnation, lease.pass_number, (lease.bundle,)), world.now_s)
    assert isinstance(lease, EvaluationLease)
    restart(world, 1)
    until_revived(world)
    assert machine.evaluated(one.number, one.incarnation, lease.id, 0.1, 0.9, world.now_s) == "", "of a mixture"
    for replica in (one, two):
        batch.holds.pop(replica.incarnation, None)
        assert isinstance(machine.lease(WorkRequest(replica.number, replica.incarnation), world.now_s), Wait)
    world.settle()
    assert machine.progress.best is None
    again = machine.lease(WorkRequest(one.number, one.incarnation), world.now_s)
    assert isinstance(again, EvaluationLease), "it is asked for anew"


def test_a_shard_that_loads_a_set_asks_to_come_again(a_world: MakeWorld) -> None:
    batch = Batch(a_world)
    in_pass(batch, 1)
    shard = batch.world.shards[0]
    index = next(iter(shard.segments))
    shard.empty()
    push = Push(Pusher(0, 9), 0, vector="accrued", clock=99, bundle=1)
    with pytest.raises(Moved, match="is being loaded"):
        shard.push(push, index, np.zeros(shard.segments[index].span.length, np.float32))
    with pytest.raises(Moved, match="is being loaded"):
        shard.pull("trial", index)


def test_end_of_run_survives_shard_death_while_closing(a_world: MakeWorld) -> None:
    batch = Batch(a_world, snapshots=NO_SETS)
    world = batch.world
    while world.state() is not State.CLOSING:
        turn(batch)
        while world.state() is not State.CLOSING and world.act() is not None:
            pass
    w = world.vector().copy()
    restart(world, 1)
    world.settle()
    world.tick(1.0)
    world.settle()
    assert world.state() is State.DONE
    assert [row["iterations"] for row in world.events("rolled_back")] == [0]
    assert world.exported is not None
    assert np.array_equal(world.exported[1], w)


def test_shard_death_before_the_end_is_safe_resumes_passes(a_world: MakeWorld, undisturbed: dict[int, float]) -> None:
    batch = Batch(a_world, snapshots=NO_SETS)
    world = batch.world
    while not batch.method.ended:
        turn(batch)
        while not batch.method.ended and world.act() is not None:
            pass
    assert world.state() is State.READY, "the set is not written yet"
    restart(world, 1)
    world.settle()
    assert world.state() is State.READY
    assert losses(batch.run()) == pytest.approx(undisturbed)
    assert [row["iterations"] for row in world.events("rolled_back")] == [8]


def test_partly_written_parameters_are_rewritten_at_the_end(a_world: MakeWorld) -> None:
    batch = Batch(a_world)
    world, machine = batch.world, batch.world.machine
    while batch.method.phase is not Phase.ACCEPT:
        turn(batch)
        while batch.method.phase is not Phase.ACCEPT and world.act() is not None:
            pass
    machine.stop("stopped by a signal", world.now_s)
    program = next(one for one in [*world.waiting, *machine.actions] if isinstance(one, RunProgram)).program
    half = ProgramExecutor(world.shards[0])
    half.run(program)
    half.close()
    world.take_over()
    for _ in range(3):
        world.tick(0.1)
        world.settle()
    assert world.state() is State.DONE
    assert world.exported is not None
    assert np.array_equal(world.exported[1], world.vector("trial"))


def test_ended_run_resumes_with_a_higher_limit(a_world: MakeWorld, undisturbed: dict[int, float]) -> None:
    first = Batch(a_world, iterations=3).run().world
    newest = max(first.disk)
    job = make_job(strategy=STRATEGY, limits={"epochs": 500}, shards=2, replicas=3)
    state = json.loads(json.dumps(first.disk[newest].state))
    batch = object.__new__(Batch)
    batch.world, batch.holds = World(job, SHAPE, (newest, state), first.disk, first.now_s).started(), {}
    assert losses(batch.run()) == pytest.approx({n: loss for n, loss in undisturbed.items() if n > 3})
