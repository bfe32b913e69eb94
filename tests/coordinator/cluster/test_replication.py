"""Shards with followers: promotion after the death of a leader, and cases without promotion."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.cluster.replication import RETRY_S
from coordinator.core.effects import AttachFollower, DetachFollower, RecoverShard, RollBack, TakeSnapshot
from coordinator.core.members import Members
from coordinator.core.states import DatasetSizes, State
from dbelief.errors import ResourceExhausted, Unavailable
from ps_server.replication.apply import promote
from tests.coordinator.replica import LAYOUT
from tests.coordinator.scheduling.test_batch_method import Batch
from tests.coordinator.world import World, make_job


class Chained(World):
    """A world in which a promoted follower has what its leader had."""

    def recover(self, action: RecoverShard) -> tuple[str | None, dict[int, int]]:
        """See `World.recover`."""
        if not action.promoted:
            return super().recover(action)
        number, shard = action.place.shard, self.shards[action.place.shard]
        if self.machine.members.find("shard", number, action.incarnation) is None:
            raise Unavailable(f"shard {number} does not answer")
        for segment in shard.segments.values():
            promote(segment, action.place.shard_epoch)
        if action.membership is not None:
            shard.set_membership(action.membership.member_epoch, action.membership.rounds)
        shard.fence(action.fenced)
        shard.forget(action.settled)
        self.lives[number] += 1
        self.dead.discard(number)
        return action.set_id, {}

    def followers(self) -> Chained:
        """One for each shard joins; they are asked to follow."""
        self.all_shards()
        self.tick()
        self.settle()
        return self

    def whole(self, shard: int) -> None:
        """A shard tells that its follower has all."""
        epoch = max(action.epoch for action in self.did(AttachFollower) if action.shard == shard)
        self.machine.follower_reported(shard, epoch, True, "")
        self.settle()

    def lease_ends(self) -> None:
        """Those who do not beat are missed."""
        self.tick(self.job.deadlines.lease_s + 1.0)
        self.settle()


def a_job(**changes: Any) -> Chained:
    world = Chained(make_job(replication=2, **changes))
    world.started()
    return world.followers()


def test_follower_is_promoted_with_all_acknowledged_pushes() -> None:
    world = a_job()
    for shard in (0, 1):
        world.whole(shard)
    first, second = world.replicas
    first.work()
    first.train(pushes=2)
    second.work()
    second.train(pushes=1)
    assert world.machine.placement is not None
    old = world.machine.placement.places[1]
    world.kill_shard(1)
    world.lease_ends()
    (revived,) = world.did(RecoverShard)
    assert (revived.promoted, revived.place.shard) == (True, 1)
    assert world.events("promoted") == [{"shard": 1, "set": revived.set_id}]
    away = world.machine.recovery.is_unavailable
    assert (away(old), away(revived.place)) == (True, False), "nobody waits any more for what the dead one was asked"
    world.run()
    assert world.state() is State.DONE
    assert (world.applied() == 1).all()
    progress = world.machine.progress
    assert (progress.lost, world.machine.training.pushes_twice, world.machine.failures) == (0, 0, {"shard 1": 1})
    assert world.machine.replication.promotions == 1


def test_a_follower_that_may_lack_something_is_not_promoted() -> None:
    world = a_job()
    world.whole(0)
    world.kill_shard(1)
    world.lease_ends()
    (revived,) = world.did(RecoverShard)
    assert (revived.promoted, revived.place.shard) == (False, 1), "it is there, and begins with the set"
    assert world.machine.replication.promotions == 0
    world.run()
    assert world.state() is State.DONE


def test_a_follower_is_not_in_sync_before_the_set_of_a_resume_is_loaded() -> None:
    """It follows a shard without values; promoted as it is, it failed the job: "segment 1 has no initial values"."""
    crashed = a_job()
    crashed.run()
    world = Chained(
        crashed.job, crashed.shape, (max(crashed.disk), crashed.disk[max(crashed.disk)].state), crashed.disk
    )
    world.all_shards()
    world.machine.join("replica", 77, "replica", "", world.now_s, LAYOUT)
    world.act()  # the shards are assigned; the set is to be loaded next
    world.all_shards()
    follower = next(member for member in world.machine.members.alive("follower") if member.number == 1)
    link = world.machine.replication._link(1)
    link.follower, link.whole = follower.incarnation, True
    leader = next(member for member in world.machine.members.alive("shard") if member.number == 1)
    world.machine.leave("shard", 1, leader.incarnation, "killed", world.now_s, failed=True)
    (recovers,) = [action for action in world.machine.actions if isinstance(action, RecoverShard)]
    assert (recovers.incarnation, recovers.promoted, recovers.set_id) == (
        follower.incarnation,
        False,
        max(crashed.disk),
    )


def test_silent_coordinator_keeps_follower_of_dead_leader() -> None:
    world = a_job()
    for shard in (0, 1):
        world.whole(shard)
    silent, world.shard_members = world.shard_members, []
    world.tick(world.job.deadlines.lease_s + 0.5)
    heirs = world.machine.members.alive("shard")
    assert len(heirs) == 2
    assert all(world.machine.replication.promotes(member) for member in heirs), "the link was cut, and they live"
    world.shard_members = [row for row in silent if row[1] in {member.incarnation for member in heirs}]
    world.settle()
    world.run()
    assert (world.applied() == 1).all()


def test_leader_without_follower_gets_a_new_one() -> None:
    world = a_job()
    world.whole(0)
    (follower,) = [m for m in world.machine.members.alive("follower") if m.number == 0]
    world.shard_members.remove((0, follower.incarnation))
    world.lease_ends()
    (alone,) = world.did(DetachFollower)
    assert (alone.shard, alone.epoch) == (0, 2)
    assert world.machine.replication.unfollowed == 2
    assert world.shard() == 0
    world.tick(RETRY_S)
    world.settle()
    assert [(one.shard, one.epoch) for one in world.did(AttachFollower)] == [(0, 1), (1, 1), (0, 3)]
    world.whole(0)
    assert world.machine.replication.unfollowed == 1


def test_broken_pair_is_attached_again_after_a_delay() -> None:
    world = a_job()
    world.whole(1)
    asked = len(world.did(AttachFollower))
    world.machine.follower_reported(1, 1, False, "its cable was cut")
    world.settle()
    assert world.events("unfollowed") == [{"shard": 1, "reason": "its cable was cut"}]
    assert [(one.shard, one.epoch) for one in world.did(DetachFollower)] == [(1, 2)]
    world.machine.follower_reported(1, 1, True, "")  # what it said before it was told
    world.machine.follower_reported(1, 1, False, "its cable was cut")
    world.settle()
    assert len(world.did(DetachFollower)) == 1
    world.tick(RETRY_S)
    world.settle()
    assert [(one.shard, one.epoch) for one in world.did(AttachFollower)[asked:]] == [(1, 3)]


def test_next_coordinator_promotes_after_takeover() -> None:
    world = a_job()
    for shard in (0, 1):
        world.whole(shard)
    first, _ = world.replicas
    first.work()
    first.train(pushes=2)
    world.kill_shard(0)
    world.tick(world.job.deadlines.lease_s + 1.0)  # it is missed, and nothing was done yet
    world.take_over()
    world.settle()
    (revived,) = world.did(RecoverShard)
    assert (revived.promoted, revived.place.shard) == (True, 0)
    world.run()
    assert (world.applied() == 1).all()


def test_takeover_repeats_detach_of_followers() -> None:
    world = a_job()
    world.whole(0)
    world.machine.commit_due = True
    world.tick()
    world.take_over()
    world.settle()
    assert [(one.shard, one.epoch) for one in world.did(DetachFollower)] == [(1, 2)]
    world.tick()
    world.settle()
    assert [(one.shard, one.epoch) for one in world.did(AttachFollower)[2:]] == [(1, 3)]
    world.kill_shard(0)
    world.lease_ends()
    assert [one.promoted for one in world.did(RecoverShard)] == [True]


def test_where_both_die_the_newest_set_is_loaded() -> None:
    world = a_job()
    world.whole(1)
    (follower,) = [m for m in world.machine.members.alive("follower") if m.number == 1]
    world.shard_members.remove((1, follower.incarnation))
    world.lease_ends()
    world.kill_shard(1)
    world.lease_ends()
    assert world.machine.waiting_for() == "shards (1 of 2 joined)"
    assert world.shard() == 1
    world.settle()
    assert [one.promoted for one in world.did(RecoverShard)][-1:] == [False]
    world.run()
    assert world.state() is State.DONE


def a_batch() -> tuple[Batch, Chained]:
    """A batch method whose shards have followers."""
    made: list[Chained] = []

    def make(shape: DatasetSizes, **changes: Any) -> World:
        made.append(Chained(make_job(replication=2, **changes), shape))
        return made[0]

    batch = Batch(make)
    return batch, made[0].followers()


def compute(batch: Batch, steps: int) -> None:
    """Replicas take so many small steps, and the coordinator does what follows."""
    for _ in range(steps):
        for replica in batch.world.replicas:
            batch.step(replica)
        batch.world.tick(0.01)
        batch.world.settle()


def test_batch_method_continues_after_promotion() -> None:
    batch, world = a_batch()
    for shard in (0, 1):
        world.whole(shard)
    compute(batch, 40)
    world.kill_shard(1)
    world.lease_ends()
    batch.run()
    undisturbed, _ = a_batch()
    undisturbed.run()
    assert (world.state(), world.did(RollBack), world.events("rolled_back")) == (State.DONE, [], [])
    assert [one.promoted for one in world.did(RecoverShard)] == [True]
    assert [row["loss"] for row in world.events("iteration")] == pytest.approx(
        [row["loss"] for row in undisturbed.world.events("iteration")], rel=1e-6
    )


def test_rollback_detaches_followers() -> None:
    batch, world = a_batch()
    world.whole(0)
    compute(batch, 40)
    world.kill_shard(1)  # whose follower may lack something
    world.lease_ends()
    assert world.shard() == 1
    world.settle()
    (back,) = world.did(RollBack)
    alone = [one for one in world.did(DetachFollower) if one.shard == 0]
    assert world.done.index(alone[-1]) < world.done.index(back), "else it might be promoted without going back"
    world.tick(RETRY_S)
    world.settle()
    assert [one for one in world.did(AttachFollower) if one.shard == 0][-1].epoch > alone[-1].epoch
    batch.run()
    assert world.state() is State.DONE


def test_a_set_that_was_postponed_for_a_promotion_is_not_written_before_a_rollback() -> None:
    """The promoted follower fails too: a set would mix the restored shard with the other one's later iteration."""
    batch, world = a_batch()
    for shard in (0, 1):
        world.whole(shard)
    compute(batch, 40)
    newest, written = max(world.disk), len(world.did(TakeSnapshot))
    world.machine.actions.append(world.machine.training.begin_set())
    world.kill_shard(1)
    world.tick(world.job.deadlines.lease_s + 1.0)
    assert isinstance(world.act(), TakeSnapshot), "it is postponed until the follower is promoted"
    world.kill_shard(1)
    world.lease_ends()
    assert [one.promoted for one in world.did(RecoverShard)] == []
    assert world.shard() == 1
    world.settle()
    assert [one.set_id for one in world.did(RollBack)] == [newest]
    assert len(world.events("rolled_back")) == 1
    assert len(world.did(TakeSnapshot)) == written
    batch.run()
    assert world.state() is State.DONE


def test_followers_are_placed_on_other_hosts() -> None:
    members = Members(5.0, shards={0, 1}, replication=2)
    for token, host in enumerate(("10.0.0.1", "10.0.0.2")):
        members.join("shard", token, f"s{token}", f"{host}:7000", 0.0)
    one = members.join("shard", 10, "f1", "10.0.0.1:7001", 0.0)
    other = members.join("shard", 11, "f2", "10.0.0.2:7001", 0.0)
    assert [(one.kind, one.number), (other.kind, other.number)] == [("follower", 1), ("follower", 0)]
    again = members.join("shard", 10, "f1", "10.0.0.1:7001", 0.0)
    assert again is one
    with pytest.raises(ResourceExhausted):
        members.join("shard", 12, "f3", "10.0.0.3:7001", 0.0)
    members.promote(one)
    assert members.find_server(1, one.incarnation) is one
    assert [member.number for member in members.alive("follower")] == [0]
    assert members.named("shard", "f2", 99) is other, "one that follows and is started again"
