"""Resharding of a training job: a death at any step loses no push and counts none twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cluster.resharding import RETRY_S
from coordinator.core.effects import ConfirmOwnership, DecommissionShard, MigrateSegments
from coordinator.core.states import State
from dbelief.errors import Rejected, ResourceExhausted, Unavailable
from tests.examples import examples

from .test_recovery import restart_shard

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


class CoordinatorDies(Exception):
    """It ends in the middle of what it does."""


def numbers(world: World) -> list[int]:
    """The shards that have a place."""
    assert world.machine.placement is not None
    return [place.shard for place in world.machine.placement.places]


def counts(world: World) -> list[int]:
    """How many segments each of them holds."""
    assert world.machine.placement is not None
    return [place.count for place in world.machine.placement.places]


def scale(world: World, shards: int) -> None:
    """So many are wanted, and those that are missing are started."""
    world.machine.request_shards(shards, world.now_s)
    start_missing(world)


def start_missing(world: World) -> None:
    """As a launcher does it."""
    wanted = world.machine.resharding.wanted
    with suppress(ResourceExhausted):  # the death of one is not noticed yet: it waits for a place
        while len({number for number, _ in world.shard_members if number < wanted}) < wanted:
            world.shard()


def live(world: World, turns: int, settle: bool = True) -> None:
    """Replicas work on, and actions are carried out."""
    for _ in range(turns):
        if world.machine.over:
            return
        for replica in list(world.replicas):
            replica.turn()
        world.tick(0.05)
        world.settle() if settle else world.act()


def until_sized(world: World) -> None:
    """Replicas work on until the job has the shards that are wanted."""
    for _ in range(300):
        if not world.machine.resharding.running:
            return
        start_missing(world)
        live(world, 1)
    raise AssertionError(f"{numbers(world)} hold {counts(world)}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy__staleness": 0},
        {"strategy__staleness": 2},
        {"evaluate": {"every": 40, "keep": "best"}},
        {"snapshots": {"every_s": 0.2}},
    ],
)
def test_shards_come_and_go_while_a_job_trains(a_world: MakeWorld, changes: dict[str, object]) -> None:
    world = a_world(**changes, limits={"epochs": 8}).started()
    live(world, 3)
    scale(world, 4)
    until_sized(world)
    assert (numbers(world), sorted(counts(world))) == ([0, 1, 2, 3], [1, 1, 1, 1])
    live(world, 2)
    scale(world, 3)
    until_sized(world)
    assert (numbers(world), sorted(counts(world))) == ([0, 1, 2], [1, 1, 2])
    assert world.dismissed == [3]
    scale(world, 1)
    until_sized(world)
    assert (numbers(world), sorted(counts(world))) == ([0], [4])
    assert sorted(world.dismissed) == [1, 2, 3]
    world.run()
    assert world.state() is State.DONE, world.machine.reason
    assert world.machine.progress.samples == 800
    assert not world.machine.failures
    assert (world.vector()[:, :800] > 0).all()
    if world.job.strategy.staleness != 0:  # a round's mean gives each replica its share
        assert (world.applied() == 1).all()
    assert [(e["from"], e["to"]) for e in world.events("scaling")] == [(2, 4), (4, 3), (3, 1)]
    assert [(e["to"], e["from"], e["segments"]) for e in world.events("scaled")] == [(4, 2, 2), (3, 4, 1), (1, 3, 2)]


def test_shard_numbers_follow_the_target_and_surplus_waits(a_world: MakeWorld) -> None:
    world = a_world(limits={"epochs": 8}).started()
    with pytest.raises(
        ResourceExhausted, match=r"all 2 shards of the job have joined; `dbelief scale ps` allows more$"
    ):
        world.shard()
    world.machine.request_shards(3, world.now_s)
    assert world.machine.waiting_for() == "shards (2 of 3 have a place)"
    world.settle()
    assert counts(world) == [2, 2], "nothing moves until all are there"
    assert world.shard() == 2
    with pytest.raises(ResourceExhausted, match="all 3 shards of the job have joined"):
        world.shard()
    world.settle()
    assert sum(counts(world)) == 4
    assert numbers(world) == [0, 1, 2]
    assert not world.machine.waiting_for()


@pytest.mark.parametrize(
    ("shards", "reason"),
    [
        (0, r"needs at least one shard: `dbelief stop` ends it$"),
        (5, r"^job test has 4 segments, and no use for 5 shards$"),
    ],
)
def test_impossible_shard_counts_are_refused(a_world: MakeWorld, shards: int, reason: str) -> None:
    world = a_world(limits={"epochs": 8}).started()
    with pytest.raises(Rejected, match=reason):
        world.machine.request_shards(shards, world.now_s)
    assert world.machine.resharding.wanted == 2


def test_idle_or_recorded_jobs_refuse_resharding(a_world: MakeWorld) -> None:
    world = a_world()
    with pytest.raises(
        Rejected, match=r"^job test is empty: the number of shards can change only in training \(ready\)"
    ):
        world.machine.request_shards(3, world.now_s)
    world = a_world(record=True).started()
    with pytest.raises(Rejected, match=r"^job test is recorded: "):
        world.machine.request_shards(3, world.now_s)


def test_another_wish_replaces_the_first(a_world: MakeWorld) -> None:
    world = a_world(limits={"epochs": 8}).started()
    scale(world, 4)
    live(world, 4, settle=False)
    scale(world, 1)
    live(world, 4, settle=False)
    scale(world, 3)
    until_sized(world)
    assert numbers(world) == [0, 1, 2]
    world.run()
    assert (world.applied() == 1).all()


def test_unfulfilled_resharding_does_not_block_training(a_world: MakeWorld) -> None:
    world = a_world(limits={"epochs": 8}, deadlines={"beat_s": 5, "join_s": 10}).started()
    world.machine.request_shards(4, world.now_s)
    for _ in range(60):
        live(world, 1)
        world.tick(0.5)
    world.run()
    assert world.state() is State.DONE, world.machine.reason
    assert counts(world) == [2, 2]


def test_new_shard_dead_without_segments_is_dropped(a_world: MakeWorld) -> None:
    world = a_world(limits={"epochs": 8}).started()
    world.machine.request_shards(4, world.now_s)
    world.shard()
    world.settle()
    assert numbers(world) == [0, 1, 2]
    world.kill_shard(2)
    world.tick(6.0)
    assert numbers(world) == [0, 1]
    assert not world.machine.recovery.unavailable
    assert world.machine.waiting_for() == "shards (2 of 4 have a place)"
    live(world, 2)
    start_missing(world)
    until_sized(world)
    assert numbers(world) == [0, 1, 2, 3]
    world.run()
    assert (world.applied() == 1).all()


def test_leaving_shard_dead_with_segments_recovers_first(a_world: MakeWorld) -> None:
    world = a_world(limits={"epochs": 8}).started()
    world.kill_shard(1)
    world.machine.request_shards(1, world.now_s)
    world.tick(6.0)
    world.settle()
    assert counts(world) == [2, 2]
    assert world.shard() == 1
    world.settle()
    until_sized(world)
    assert numbers(world) == [0]
    with pytest.raises(ResourceExhausted, match="all 1 shards of the job have joined"):
        world.shard()
    world.run()
    assert world.state() is State.DONE


def test_a_move_that_fails_is_made_again_after_a_while(a_world: MakeWorld) -> None:
    world = a_world(limits={"epochs": 8}).started()
    failures = iter([True])

    def lost(step: str) -> None:
        if step == "given" and next(failures, False):
            raise Unavailable("the answer was lost")

    world.at = lost
    scale(world, 3)
    world.settle()
    (note,) = world.events("not_moved")
    assert note["reason"] == "the answer was lost"
    assert sorted(counts(world)) == [0, 2, 2]
    assert all(shard.segments.keys() == set(held) for _, shard, held in world.places()), "the giver serves again"
    world.tick(RETRY_S / 2)
    world.settle()
    assert sorted(counts(world)) == [0, 2, 2]
    world.tick(RETRY_S)
    world.settle()
    assert sorted(counts(world)) == [1, 1, 2]


TROUBLES = (
    "giver dies",
    "taker dies",
    "giver is started again",
    "taker is started again",
    "answer is lost",
    "coordinator dies",
    "coordinator and giver die",
    "coordinator and taker die",
    "replica dies",
    "another target",
)


class Trouble:
    """What happens once, at a step of one move."""

    def __init__(self, world: World, what: str, step: str, move: int) -> None:
        self.world, self.what, self.step, self.left = world, what, step, move

    def __call__(self, step: str) -> None:
        world, move = self.world, self.world.machine.resharding._under_way or self.move
        self.move = move
        if step != self.step or self.left < 0:
            return
        self.left -= 1
        if self.left >= 0:
            return
        assert isinstance(move, MigrateSegments)
        who = move.sender if "giver" in self.what else move.receiver
        if "again" in self.what:
            with suppress(ResourceExhausted):  # it is not needed any more
                restart_shard(world, who)
        elif "giver" in self.what or "taker" in self.what:
            world.kill_shard(who)
        if "coordinator" in self.what:
            raise CoordinatorDies
        if self.what == "answer is lost" and step != "over":
            raise Unavailable(self.what)
        if self.what == "replica dies":
            world.replicas[0].die()
        if self.what == "another target":
            world.machine.request_shards(2, world.now_s)

    move: MigrateSegments | None = None


def survive(world: World, turns: int) -> None:
    """Live on; where the coordinator dies, another goes on. Who dies is started again."""
    for _ in range(turns):
        try:
            live(world, 1)
        except CoordinatorDies:
            world.take_over()
        if world.dead - {n for n, _ in world.shard_members}:
            world.tick(6.0)
            for number in world.machine.recovery.unavailable - {n for n, _ in world.shard_members}:
                world.shard(requested=number)
        if world.machine.state is State.READY:
            start_missing(world)


@pytest.mark.parametrize(
    "staleness", [None, pytest.param(0, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("to", [4, 1])
@pytest.mark.parametrize("step", ["begun", "given", "there", "over"])
@pytest.mark.parametrize("what", TROUBLES)
def test_failures_during_a_migration_lose_nothing_more(
    a_world: MakeWorld, what: str, step: str, to: int, staleness: int | None
) -> None:
    world = a_world(strategy__staleness=staleness, limits={"epochs": 8}, deadlines={"beat_s": 5, "join_s": 1000})
    world.started()
    live(world, 3)
    trouble = Trouble(world, what, step, move=to > 1)
    world.at = trouble
    scale(world, to)
    survive(world, 60)
    assert trouble.left < 0
    if "replica" in what:
        world.replica()
    survive(world, 100)
    world.run()
    assert world.state() is State.DONE, world.machine.reason
    wanted = 2 if what == "another target" else to
    assert not world.machine.resharding.running or world.machine.waiting_for()
    assert numbers(world) == list(range(wanted))
    if staleness == 0:
        assert (world.vector()[:, :800] > 0).all() or world.machine.progress.lost
        return
    applied = world.applied()
    assert applied.max() <= 1 + world.machine.training.pushes_twice
    if not world.machine.progress.lost:
        assert applied.min() == 1
    if not any(died.startswith(("shard 0", "shard 1")) for died in world.machine.failures) and step in (
        "begun",
        "given",
    ):
        assert not world.machine.progress.lost


@pytest.mark.long
@pytest.mark.parametrize("staleness", [None, 2])
@given(seed=st.integers(0, 2**32))
@examples(100)
def test_losses_are_counted_after_any_deaths_and_resharding(
    a_world: MakeWorld, staleness: int | None, seed: int
) -> None:
    draw = random.Random(seed)
    world = a_world(
        strategy__staleness=staleness,
        snapshots={"every_s": 1.0},
        limits={"epochs": 10},
        deadlines={"beat_s": 5, "join_s": 1000},
    ).started()
    steps = ["begun", "given", "there", "over"]
    for _ in range(4):
        if world.machine.state is State.READY:
            scale(world, draw.randint(1, 4))
        world.at = Trouble(world, draw.choice(TROUBLES[:-2]), draw.choice(steps), draw.randint(0, 2))
        for _ in range(draw.randint(1, 6)):
            try:
                live(world, 1, settle=draw.random() < 0.5)
            except CoordinatorDies:
                world.take_over()
        survive(world, 3)
    world.at = lambda step: None
    survive(world, 20)
    counted = world.machine.state is State.READY  # else no replica may push into a shard that has lost something
    survive(world, 20)
    world.run()
    assert world.state() is State.DONE, world.machine.reason
    applied = world.applied()
    assert applied.max() <= 1 + world.machine.training.pushes_twice
    missing = (applied == 0).sum(axis=1).max()
    assert not counted or missing <= 10 * world.machine.progress.lost


def test_takeover_decommissions_shards_without_a_place(a_world: MakeWorld) -> None:
    world = a_world(limits={"epochs": 8}).started()
    world.machine.request_shards(1, world.now_s)
    while not any(isinstance(action, DecommissionShard) for action in (*world.waiting, *world.machine.actions)):
        world.act()
    assert numbers(world) == [0]
    world.take_over()
    world.tick(0.5)
    world.settle()
    assert world.dismissed == [1]
    world.run()
    assert (world.applied() == 1).all()


def test_takeover_confirms_ownership_before_other_commands(a_world: MakeWorld) -> None:
    world = a_world().started()

    def dies(step: str) -> None:
        if step == "there":
            raise CoordinatorDies

    world.at = dies
    scale(world, 3)
    with pytest.raises(CoordinatorDies):
        world.settle()
    assert any(shard.segments.keys() != set(held) for _, shard, held in world.places())
    world.take_over()
    world.at = lambda step: None
    assert any(isinstance(action, ConfirmOwnership) for action in world.machine.actions)
    while not isinstance(world.act(), ConfirmOwnership):
        pass
    assert all(shard.segments.keys() == set(held) for _, shard, held in world.places())
    world.run()
    assert (world.applied() == 1).all()
