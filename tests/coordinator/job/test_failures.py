"""Replicas, shards and clients that die or leave while a job trains: reassignment of their work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coordinator.core.effects import Fence
from coordinator.core.messages import Stop, Wait
from coordinator.core.states import State
from dbelief.errors import Rejected

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def test_lease_of_dead_replica_resumes_at_common_prefix(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.train(pushes=1)
    assert not first.push(only=3)
    first.die()
    world.settle()
    assert world.did(Fence) == [Fence(first.number, first.incarnation)]
    assert world.machine.training.pushes_twice == 1
    lease = second.work()
    assert (lease.start, lease.stop) == (10, 30)
    with pytest.raises(Rejected, match="fenced"):
        first.push()
    world.run()
    again = (world.applied() - 1).sum(axis=1)
    assert again.tolist() == [10, 10, 10, 0], "the push that three segments had was made again"
    assert (world.applied().min(axis=0) == 1).all()
    assert world.machine.progress.samples == 200
    assert world.machine.failures.total() == 1


def test_unreported_pushes_in_ledgers_count(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(tell=False)
    assert world.machine.progress.samples == 0
    first.die()
    world.settle()
    assert world.machine.progress.samples == world.machine.progress.samples_of(first.number) == 30
    assert world.machine.progress.pushes == 3
    assert world.machine.training.pushes_twice == 0


def test_job_waits_for_unsettled_lease_of_dead_replica(a_world: MakeWorld) -> None:
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


def test_leaving_replica_returns_its_remaining_lease(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.train(pushes=2)
    first.leave("asked to end")
    world.settle()
    assert second.work().start == 20
    assert not world.machine.failures
    assert world.events("member")[-1] == {
        "role": "replica",
        "id": first.number,
        "what": "left",
        "reason": "asked to end",
        "name": f"r{first.token}",
    }


def test_expired_replica_is_stopped_and_its_reports_ignored(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    first.train(pushes=1, tell=False)
    first.die()
    assert not world.machine.heartbeat("replica", first.number, first.incarnation, world.now_s)
    first.tell()
    assert world.machine.progress.samples == 0
    work = first.ask()
    assert isinstance(work, Stop)
    assert "was removed" in work.reason


def test_unreplaced_dead_shard_fails_the_job_in_one_line(a_world: MakeWorld) -> None:
    world = a_world().started()
    world.kill_shard(1)
    world.tick(6.0)
    assert world.state() is State.READY
    assert world.machine.waiting_for() == "shards (1 of 2 joined)"
    world.tick(61.0)
    assert world.state() is State.FAILED
    reason = world.machine.reason
    assert reason.startswith("waited 60 s for shards (1 of 2 joined); shard 1 (s")
    assert reason.endswith("died: no heartbeat for 5.5 s")
    assert "\n" not in reason
    assert world.machine.failures == {"shard 1": 1}
    world.settle()
    assert world.finished
    assert all(isinstance(r.ask(), Stop) for r in world.replicas)


def test_stalled_replica_expires_despite_heartbeats(a_world: MakeWorld) -> None:
    world = a_world(deadlines={"beat_s": 5, "join_s": 600, "progress_s": 10}).started()
    first, second = world.replicas
    first.work()
    world.tick(15.0)
    first.train(pushes=1)
    world.tick(15.0)
    assert not world.machine.failures
    world.tick(6.0)
    assert world.machine.failures == {f"replica {first.number}": 1}
    assert world.events("member")[-1:] != []
    world.settle()
    assert second.work().start == 10


def test_recovering_shard_pauses_progress_timeout(a_world: MakeWorld) -> None:
    world = a_world(deadlines={"beat_s": 5, "join_s": 600, "progress_s": 10}).started()
    world.replicas[0].work()
    world.kill_shard(0)
    world.tick(60.0)
    world.shard()
    world.settle()
    assert world.machine.failures == {"shard 0": 1}


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
