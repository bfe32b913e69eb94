"""Takeover: a coordinator that ends at any moment, and another that continues from the persisted state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coordinator.core.effects import DropLedger, Fence, RecoverShard, SetMembership
from coordinator.core.messages import EvaluationLease
from coordinator.core.states import DatasetSizes, State
from coordinator.job.machine import JobMachine
from coordinator.job.persistence import (
    FORMAT,
    last_shard_epoch,
    load_unfinished,
    outcome,
    restore,
    serialize,
    training_started,
)
from coordinator.scheduling.synchronous import SynchronousPolicy
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Rejected, RuntimeFailure, UserError

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def stored(world: World) -> dict[str, bytes]:
    return {name: text.encode() for name, text in world.stored.items()}


@pytest.mark.parametrize(
    "changes",
    [{}, {"strategy__staleness": 0}, {"strategy__staleness": 2}, {"evaluate": {"every": 40, "keep": "best"}}],
)
@pytest.mark.parametrize("turn", [0, 3, 7, 12, 20, 33])
def test_takeover_at_any_turn_trains_each_sample_once(
    a_world: MakeWorld, turn: int, changes: dict[str, object]
) -> None:
    world = a_world(**changes).started()
    for _ in range(turn):
        for replica in world.replicas:
            replica.turn()
        world.tick(0.05)
        world.settle()
    world.take_over()
    world.run()
    assert world.state() is State.DONE
    if world.job.strategy.staleness != 0:
        assert (world.applied() == 1).all()
    else:  # a round's mean gives each replica its share
        shares = world.vector()[:, :200]
        assert (shares > 0).all()
        assert shares.sum(axis=1) == pytest.approx([shares[0].sum()] * 4)
    assert world.machine.progress.samples == 200
    assert world.machine.failures == {"coordinator": 1}


def test_progress_with_the_next_request_covers_a_lost_report(a_world: MakeWorld) -> None:
    """The report on the finished lease went to a coordinator that has not stored it."""
    world = a_world().started()
    first, _ = world.replicas
    lease = first.work()
    first.train()
    loss, done = world.machine.progress.loss, (30, 3, 3)

    def figures() -> tuple[int, int, int]:
        assert world.machine.progress.samples == world.machine.leases.done
        return world.machine.progress.samples, world.machine.progress.pushes, world.machine.progress.steps

    assert figures() == done
    world.take_over()
    assert lease.id in world.machine.leases.outstanding
    assert figures() == (0, 0, 0)
    following = first.work()
    assert list(world.machine.leases.outstanding) == [following.id]
    assert (figures(), world.machine.progress.loss) == (done, loss)
    world.take_over()
    assert figures() == done, "it is stored with the lease"
    assert first.work() == following, "the reply was lost: it reports and asks again"
    assert figures() == done
    world.run()
    assert (world.applied() == 1).all()


def test_evaluation_continues_after_takeover(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30, "keep": "best"}).started(1)
    (replica,) = world.replicas
    while replica.evaluation is None:
        replica.turn()
    world.take_over()
    assert isinstance(replica.ask(), EvaluationLease)
    assert replica.evaluate() == "best.0"
    assert world.machine.progress.best is not None


def test_unread_ledger_is_fenced_again_after_takeover(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.die()
    world.take_over()
    assert [a for a in world.machine.actions if isinstance(a, Fence)] == [Fence(first.number, first.incarnation)]
    world.settle()
    assert second.work().samples == 30


@pytest.mark.parametrize("staleness", [None, 2])
def test_an_incarnation_is_fenced_again_under_its_number_though_another_has_it(
    a_world: MakeWorld, staleness: int | None
) -> None:
    """It stayed a member at the shards, or of its group's block, for which the others waited without end."""
    world = a_world(strategy__staleness=staleness).started()
    first, second = world.replicas
    for replica in first, second:
        replica.ask()
        world.settle()  # with a bound, the shards know of it first
        replica.work()
    second.train()  # its lease is done, so that nothing else has its number
    second.die()
    again = world.replica(requested=second.number)
    assert again.number == second.number
    world.take_over()
    assert [a for a in world.machine.actions if isinstance(a, Fence)] == [Fence(second.number, second.incarnation)]
    world.run()
    assert world.state() is State.DONE


def test_undropped_ledger_rows_are_dropped_after_takeover(a_world: MakeWorld) -> None:
    """Else shards and snapshot sets keep them for as long as the job lasts."""
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train()
    first.die()
    while not world.did(Fence):
        world.act()
    assert first.incarnation in world.machine.members.settled
    world.take_over()
    world.settle()
    pushers = {pusher for shard in world.shards for _, pusher in shard.ledgers()}
    assert first.incarnation not in {pusher.incarnation for pusher in pushers}
    world.stored = serialize(world.machine, world.now_s)
    done = len(world.done)
    world.take_over()
    world.settle()
    assert not any(isinstance(action, Fence | DropLedger) for action in world.done[done:]), "once is enough"


def test_persisted_state_does_not_grow_with_restarts(a_world: MakeWorld) -> None:
    world = a_world().started()

    def restarted(times: int) -> int:
        """Bytes that the next commit holds, once each kind of member was started again so often."""
        for _ in range(times):
            world.replicas[0].die()
            world.settle()
            world.replicas[0] = world.replica(requested=0)
            world.replicas.pop()
            world.settle()
        return sum(map(len, serialize(world.machine, world.now_s).values()))

    few, many = restarted(20), restarted(200)
    assert many < few + 100
    lives = world.machine.members
    world.take_over()
    assert world.machine.members.dead <= lives.dead | set(range(1, lives.incarnations + 1))
    alive = {member.incarnation for member in world.machine.members.alive("replica", "client", "shard")}
    assert world.machine.members.dead >= lives.dead
    assert world.machine.members.dead.isdisjoint(alive)
    assert world.machine.members.settled == world.machine.members.dead
    assert world.machine.failures == {"replica 0": 220, "coordinator": 1}


def test_shard_recovery_continues_after_takeover(a_world: MakeWorld) -> None:
    world = a_world().started()
    world.kill_shard(1)
    world.tick(6.0)
    world.shard()
    world.take_over()
    assert world.machine.recovery.unavailable == {1}
    (revive,) = [a for a in world.machine.actions if isinstance(a, RecoverShard)]
    placement = world.machine.placement
    assert placement is not None
    assert revive.place.shard_epoch > placement.places[1].shard_epoch + 1, "an epoch is never given twice"
    world.run()
    assert world.state() is State.DONE


def test_takeover_sends_round_membership_again(a_world: MakeWorld) -> None:
    world = a_world(strategy__staleness=0).started()
    rounds = world.machine.training.policy
    assert isinstance(rounds, SynchronousPolicy)
    while not rounds.blocks:
        for replica in world.replicas:
            replica.ask()
        world.tick(0.05)
    world.settle()
    world.take_over()
    assert [a for a in world.machine.actions if isinstance(a, SetMembership)]
    rounds = world.machine.training.policy
    assert isinstance(rounds, SynchronousPolicy)
    assert not rounds.shards_informed
    world.run()
    assert world.state() is State.DONE


def test_takeover_before_training_restores_only_numbers(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    parts = load_unfinished(stored(world))
    assert parts is not None
    assert not training_started(parts)
    machine = JobMachine(world.job, world.shape)
    restore(machine, parts, world.now_s)
    assert machine.state is State.EMPTY
    assert machine.members.incarnations == replica.incarnation
    assert not machine.heartbeat("replica", replica.number, replica.incarnation, world.now_s), "it is to join anew"


def test_takeover_keeps_the_run_id(a_world: MakeWorld) -> None:
    world = a_world()
    world.machine.initialization.run_id, world.machine.initialization.first_run_id = 77, 33
    parts = load_unfinished(stored(world.started()))
    assert parts is not None
    machine = JobMachine(world.job, world.shape)
    restore(machine, parts, world.now_s)
    assert (machine.run_id, machine.initialization.first_run_id) == (77, 33)
    assert machine.placement is not None
    assert {place.run_id for place in machine.placement.places} == {77}


def test_finished_run_is_not_unfinished(a_world: MakeWorld) -> None:
    world = a_world().started().run()
    assert load_unfinished(stored(world)) is not None, "its run folder is not closed yet"
    world.machine.finished = True
    closed = {name: text.encode() for name, text in serialize(world.machine, world.now_s).items()}
    assert load_unfinished(closed) is None
    assert load_unfinished({}) is None
    assert outcome(closed) == "done: 200 samples trained"
    assert outcome({}) == outcome(stored(world)) == ""


def test_unreadable_state_is_a_clear_failure(a_world: MakeWorld) -> None:
    world = a_world().started()
    state = json.loads(world.stored["state"])
    for other in (1, 99):
        with pytest.raises(RuntimeFailure, match=f"the registry's state has format {other}, and this version reads 6"):
            load_unfinished({**stored(world), "state": json.dumps({**state, "format": other}).encode()})
    old = json.dumps({**state, "format": 1, "finished": True}).encode()
    assert load_unfinished({**stored(world), "state": old}) is None, "nothing of it is needed"
    for broken in (b"{", b"[]", b"{}"):
        for read in (load_unfinished, last_shard_epoch, outcome):
            with pytest.raises(RuntimeFailure, match="cannot be read"):
                read({**stored(world), "state": broken})
    with pytest.raises(RuntimeFailure, match="cannot be read"):
        load_unfinished({**stored(world), "training": b"{"})
    with pytest.raises(RuntimeFailure, match="cannot be read"):
        load_unfinished({**stored(world), "lease:7": b"{"})


def test_an_unfinished_state_of_the_version_before_is_refused(a_world: MakeWorld) -> None:
    """Its leases have numbers of pushes, which the ledgers of this version's pushes do not name."""
    world = a_world().started()
    world.replicas[0].work()
    world.kill_shard(1)
    world.tick(6.0)
    world.shard()  # a later epoch
    world.store(world.machine.machine)  # type: ignore[attr-defined]
    fields = stored(world)
    state = json.loads(fields["state"])
    assert (FORMAT, state["format"]) == (6, 6)
    assert load_unfinished(fields) is not None
    fields["lease:1"] = b"[[1,0,0,30,1,0,0,0,1],0,3,2,[1,2,20,2,20.0,0.0,0]]"
    fields["state"] = json.dumps({**state, "format": 4}).encode()
    with pytest.raises(RuntimeFailure) as refused:
        load_unfinished(fields)
    assert str(refused.value) == (
        "the registry's state has format 4, and this version reads 6: let the version that began the run finish it, or "
        "use --resume to go on from its newest snapshot set, or --fresh"
    )
    assert last_shard_epoch(fields) == world.machine.shard_epoch > 1
    assert outcome(fields) == ""
    over = {"format": 4, "finished": True, "state": "done", "reason": "200 samples trained"}
    fields["state"] = json.dumps({**state, **over}).encode()
    assert load_unfinished(fields) is None
    assert last_shard_epoch(fields) == world.machine.shard_epoch
    assert outcome(fields) == "done: 200 samples trained"


def test_a_commit_does_not_grow_with_those_that_ended(a_world: MakeWorld) -> None:
    """They may be thousands, where many workers end together, until the shards have fenced them."""
    world = a_world(replicas=40).started(replicas=40)
    first, *others = world.replicas
    first.work()
    sizes = []
    for ended in (0, 30):
        for replica in others[:ended]:
            replica.leave()
        first.train()
        begun = len(world.written)
        first.work()
        sizes.append(sum(len(text or "") for fields in world.written[begun:] for text in fields.values()))
    assert len(world.machine.members.unsettled) == 30
    assert sizes[1] <= sizes[0] + 50


def test_a_commit_writes_what_has_changed(a_world: MakeWorld) -> None:
    """Of many members, leases and incarnations only the rows of those that have changed."""
    world = a_world(replicas=30, limits={"epochs": 9}).started()
    held = [replica.work() for replica in world.replicas]
    first = world.replicas[0]
    first.train()
    begun = len(world.written)
    new = first.work()
    rows = {name for fields in world.written[begun:] for name in fields if ":" in name}
    assert rows == {
        f"lease:{held[0].id}",
        f"lease:{new.id}",
        f"incarnation:{first.incarnation}",
        f"replica:{first.number}",
    }
    assert f"lease:{held[0].id}" not in world.stored
    assert len(world.stored) > 60, "the members and their leases"


def test_data_that_have_shrunk_meanwhile_are_refused(a_world: MakeWorld) -> None:
    """Ranges of samples mean places in an order of them all; with fewer they would be other samples, or none."""
    world = a_world(DatasetSizes(train=200, validation=0, test=0)).started()
    parts = load_unfinished(stored(world))
    assert parts is not None
    with pytest.raises(UserError, match="began with 200 training samples, and the job's data holds 180 now"):
        restore(JobMachine(world.job, DatasetSizes(train=180, validation=0, test=0)), parts, world.now_s)


def test_the_form_of_the_samples_is_persisted(a_world: MakeWorld) -> None:
    world = a_world()
    form = SampleForm((4,), 3, 3, 0.5, ("a", "b", "c"), ("x", "y", "z", "u"))
    world.replica(samples=form)
    world.started()
    parts = load_unfinished(stored(world))
    assert parts is not None
    successor = JobMachine(world.job, world.shape)
    restore(successor, parts, world.now_s)
    assert successor.initialization.samples == form


def test_a_replica_with_other_data_is_refused(a_world: MakeWorld) -> None:
    world = a_world(DatasetSizes(train=200, validation=0, test=0)).started()
    with pytest.raises(Rejected, match="holds 180 training samples, the job's 200"):
        world.machine.join("replica", 99, "late", "", 0.0, world.machine.layout, train_samples=180)
