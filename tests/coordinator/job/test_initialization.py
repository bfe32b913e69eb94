"""Start of a job: required members, agreement on the model, and initial values exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.core.effects import Fence, MakeReady, TakeSnapshot
from coordinator.core.messages import Wait
from coordinator.core.states import State
from dbelief.core.layout import Layout
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Rejected
from dbelief.sparse.tables_read import with_tables

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


def test_initial_values_survive_death_of_initialiser(a_world: MakeWorld) -> None:
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


def test_complete_initial_values_are_not_overwritten(a_world: MakeWorld) -> None:
    """The initialiser dies while the first set is written: nothing may be overwritten any more."""
    world = a_world()
    world.all_shards()
    first, second = world.replica(), world.replica()
    world.settle()
    assert first.is_initialiser()
    first.initialise()
    first.die()
    assert not second.is_initialiser()
    world.machine.initialised(second.incarnation, 1, world.now_s)
    world.machine.initialised(first.incarnation, 1, world.now_s)
    world.settle()
    assert world.state() is State.READY
    assert len(world.did(TakeSnapshot)) == len(world.did(MakeReady)) == 1


def test_only_the_initialiser_is_believed(a_world: MakeWorld) -> None:
    world = a_world()
    world.all_shards()
    first, second = world.replica(), world.replica()
    world.settle()
    assert first.is_initialiser()
    world.machine.initialised(second.incarnation, 1, world.now_s)
    assert world.did(TakeSnapshot) == []
    assert not world.machine.actions


def test_expired_replica_does_not_initialise(a_world: MakeWorld) -> None:
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


@pytest.mark.parametrize(
    ("tables", "digest", "match"),
    [
        ({"item"}, "", "module reads rows of item, and that of the job of user: are all workers given the same code"),
        (set(), "", "module reads rows of no table, and that of the job of user"),
        ({"user"}, "frozen abc", "frozen parameters are not the job's"),
    ],
)
def test_a_module_with_other_tables_is_refused(a_world: MakeWorld, tables: set[str], digest: str, match: str) -> None:
    world = a_world()
    world.replica(source=with_tables("", {"user"}))
    with pytest.raises(Rejected, match=match):
        world.replica(source=with_tables(digest, tables))


FORM = SampleForm((4,), 3, 3, 0.5, ("a", "b", "c"))


def test_other_samples_are_refused(a_world: MakeWorld) -> None:
    """The names of classes, for example: the same label would mean another class."""
    world = a_world()
    world.replica()  # without data
    world.replica(samples=FORM)
    world.replica(samples=FORM)
    world.replica()
    with pytest.raises(
        Rejected, match="is not the job's: the names of the classes are a, c, b, not a, b, c; is the source"
    ):
        world.replica(samples=replace(FORM, names=("a", "c", "b")))
    assert world.machine.initialization.samples == FORM


def test_model_of_a_departed_replica_does_not_bind(a_world: MakeWorld, other_layout: Layout) -> None:
    world = a_world()
    wrong, alike = world.replica(samples=FORM), world.replica()
    wrong.leave()
    with pytest.raises(Rejected):
        world.replica(layout=other_layout)
    alike.leave()
    world.replica(layout=other_layout, source="abc", samples=replace(FORM, scale=1.0))
    world.all_shards()
    assert world.machine.layout == other_layout


def test_repeated_join_is_logged_once(a_world: MakeWorld) -> None:
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


def test_shard_dead_before_assignment_frees_its_place(a_world: MakeWorld) -> None:
    world = a_world()
    number = world.shard()
    world.machine.leave("shard", number, world.shard_members[0][1], "killed", world.now_s)
    assert world.state() is State.EMPTY
    world.started().run()
    assert world.state() is State.DONE


@pytest.mark.parametrize("progress", [0, 1, 2, 3], ids=["empty", "assigned", "initialising", "values safe"])
def test_stop_before_training_fails_for_good(a_world: MakeWorld, progress: int) -> None:
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
