"""From nobody to training: who must be there, what they must agree on, and initial values exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.core.effects import AssignShards, Fence, MakeReady, TakeSnapshot
from coordinator.core.states import State, Wait
from dbelief.core.layout import Layout
from dbelief.errors import Rejected

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def test_shards_first_then_replicas(a_world: MakeWorld) -> None:
    world = a_world()
    assert [world.shard(), world.shard()] == [0, 1]
    assert world.machine.waiting_for() == "a replica to join"
    replica = world.replica()
    assert world.state() is State.INITIALISING
    assert not replica.is_initialiser(), "the shards do not know their segments yet"
    world.settle()
    assert replica.is_initialiser()
    assert world.machine.waiting_for() == "initial values"


def test_replicas_first_then_shards(a_world: MakeWorld) -> None:
    world = a_world()
    replica, other = world.replica(), world.replica()
    assert isinstance(replica.ask(), Wait)
    world.shard()
    assert world.state() is State.EMPTY
    assert world.machine.waiting_for() == "shards (1 of 2 joined)"
    world.shard()
    world.settle()
    assert [r.is_initialiser() for r in (other, replica, other)] == [True, False, True]


def test_every_segment_is_placed_on_the_shard_that_joined_for_it(a_world: MakeWorld) -> None:
    world = a_world()
    world.shard(token=501, wish=1)
    world.shard(token=502)
    world.replica()
    (action,) = [a for a in world.machine.actions if isinstance(a, AssignShards)]
    places = action.placement.places
    assert [(p.shard, p.address, p.runs) for p in places] == [
        (0, "10.0.0.502:1", ((0, 2),)),
        (1, "10.0.0.501:1", ((2, 2),)),
    ]
    assert world.machine.placement is action.placement


def test_training_begins_when_initial_values_are_safe(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    world.settle()
    assert replica.is_initialiser()
    replica.initialise()
    assert isinstance(replica.ask(), Wait)
    world.settle()
    assert world.state() is State.READY
    kinds = [type(a) for a in world.done if isinstance(a, AssignShards | TakeSnapshot | MakeReady)]
    assert kinds == [AssignShards, TakeSnapshot, MakeReady]
    assert list(world.disk) == ["000000000000-0001"]
    assert world.machine.lease(replica.number, replica.incarnation, 2, world.now_s).samples == 30  # type: ignore[union-attr]


def test_initial_values_are_pushed_once_though_the_first_initialiser_dies_half_way(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    first, second, third = world.replica(), world.replica(), world.replica()
    world.settle()
    assert first.is_initialiser()
    first.initialise(segments=[0, 1])
    assert not second.is_initialiser()
    first.die()
    assert [r.is_initialiser() for r in (second, third)] == [True, False]
    second.initialise()
    world.settle()
    assert world.state() is State.READY
    kinds = [type(action) for action in world.done if isinstance(action, Fence | TakeSnapshot)]
    assert kinds == [Fence, TakeSnapshot], "what the first one still sends is refused before the values are safe"
    with pytest.raises(Rejected, match="fenced"):
        first.assign("w", np.ones((4, 1024), np.float32))
    assert not world.applied().any()


def test_nobody_initialises_again_once_the_values_are_complete(a_world: MakeWorld) -> None:
    """The initialiser dies while the first set is written: nothing may be overwritten any more."""
    world = a_world()
    world.all_shards()
    first, second = world.replica(), world.replica()
    world.settle()
    assert first.is_initialiser()
    first.initialise()
    first.die()
    assert not second.is_initialiser()
    world.machine.initialised(second.incarnation, world.now_s)
    world.machine.initialised(first.incarnation, world.now_s)
    world.settle()
    assert world.state() is State.READY
    assert len(world.did(TakeSnapshot)) == len(world.did(MakeReady)) == 1


def test_only_the_initialiser_is_believed(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    first, second = world.replica(), world.replica()
    world.settle()
    assert first.is_initialiser()
    world.machine.initialised(second.incarnation, world.now_s)
    assert world.did(TakeSnapshot) == []
    assert not world.machine.actions


def test_the_given_up_do_not_initialise(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    world.settle()
    replica.leave()
    assert not replica.is_initialiser()


# -- agreement -----------------------------------------------------------------------------------------------


def test_another_layout_is_refused(a_world: MakeWorld, other_layout: Layout) -> None:
    world = a_world()
    world.replica()
    with pytest.raises(Rejected, match="another layout than the job's"):
        world.replica(layout=other_layout)
    assert len(world.machine.members.alive("replica")) == 1


def test_another_source_is_refused(a_world: MakeWorld) -> None:
    world = a_world()
    world.replica(source="abc")
    world.replica(source="abc")
    with pytest.raises(Rejected, match="source differs from the job's"):
        world.replica(source="abd")


def test_a_replica_without_a_layout_is_refused(a_world: MakeWorld) -> None:
    world = a_world()
    with pytest.raises(Rejected, match="joins with its model's layout"):
        world.machine.join("replica", 1, "r", "", world.now_s)


def test_a_model_that_came_and_went_before_the_shards_binds_nobody(a_world: MakeWorld, other_layout: Layout) -> None:
    world = a_world()
    wrong, alike = world.replica(), world.replica()
    wrong.leave()
    with pytest.raises(Rejected):
        world.replica(layout=other_layout)
    alike.leave()
    world.replica(layout=other_layout, source="abc")
    world.all_shards()
    assert world.machine.layout == other_layout


def test_a_shard_too_many_is_refused(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    with pytest.raises(Rejected, match="the job has its 2 shards"):
        world.shard()


def test_a_repeated_join_is_told_of_once(a_world: MakeWorld) -> None:
    world = a_world()
    first, again = world.replica(token=77), world.replica(token=77)
    assert (first.number, first.incarnation) == (again.number, again.incarnation)
    world.settle()
    assert [event["what"] for event in world.events("member")] == ["joined"]


# -- patience ------------------------------------------------------------------------------------------------


def test_a_job_without_all_shards_fails_and_says_so(a_world: MakeWorld) -> None:
    world = a_world()
    world.shard()
    world.replica()
    world.tick(60.0)
    assert not world.machine.over
    world.tick(1.0)
    assert world.state() is State.FAILED
    assert world.machine.reason == "waited 60 s for shards (1 of 2 joined)"


def test_a_job_without_a_replica_fails_and_says_so(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    world.tick(61.0)
    assert world.machine.reason == "waited 60 s for a replica to join"


def test_initial_values_may_take_as_long_as_somebody_is_there(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    replica = world.replica()
    world.settle()
    world.tick(200.0)
    assert world.state() is State.INITIALISING
    replica.leave()
    world.tick(61.0)
    assert world.machine.reason == "no replica for 60 s; waiting for: a replica to join"


def test_a_shard_that_dies_before_it_has_segments_leaves_its_place_to_another(a_world: MakeWorld) -> None:
    world = a_world()
    number = world.shard()
    world.machine.leave("shard", number, world.shard_members[0][1], "killed", world.now_s)
    assert world.state() is State.EMPTY
    world.started().run()
    assert world.state() is State.DONE


@pytest.mark.parametrize("progress", [0, 1, 2, 3], ids=["empty", "assigned", "initialising", "values safe"])
def test_stop_before_training_fails_and_nothing_brings_the_job_back(a_world: MakeWorld, progress: int) -> None:
    world = a_world()
    if progress:
        world.all_shards()
        replica = world.replica()
    if progress > 1:
        world.settle()
        assert replica.is_initialiser()
        replica.initialise()
    if progress > 2:
        assert any(isinstance(world.act(), TakeSnapshot) for _ in range(10))
    world.machine.stop("stopped by Ctrl-C", world.now_s)
    world.settle()
    assert world.state() is State.FAILED
    assert world.machine.reason == "stopped by Ctrl-C, before training began"
    assert world.finished
    with pytest.raises(Rejected, match="is over: stopped by Ctrl-C"):
        world.replica()
