"""Random walk over all events: the job ends, and every sample was trained as often as the ledgers say.

A random walk over all that can happen, on the real machine and real shards: replicas work at their own pace, die in
mid-push, come back under their number, lose answers, skip samples; sets are written while they push; actions wait in
the queue; the whole job goes down and another goes on from its newest set.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.states import State
from tests.examples import examples

if TYPE_CHECKING:
    from tests.coordinator.replica import Replica
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


class Chaos:
    """One random walk."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        skips = 2 if world.job.strategy.staleness is None else 0
        self.weights = [50, 12, 6, 4, 1, 1, 2, 4, 0.7, skips]
        self.rng = random.Random(seed)
        world.interleave = self.interleave

    def walk(self, steps: int) -> World:
        """So many things happen; then those who are left finish the job."""
        for _ in range(steps):
            if not self.world.machine.over:
                self.step()
            self.check()
        while len(self.living()) < 2 and not self.world.machine.over:
            self.world.replica()
        self.world.run()
        assert self.world.state() is State.DONE, self.world.machine.reason
        return self.world

    def interleave(self) -> None:
        """While shards write a set, replicas work on."""
        for replica in self.living():
            if self.rng.random() < 0.5:
                replica.turn()

    def check(self) -> None:
        """Nobody who works leads another by more than the dial allows."""
        dial = self.world.job.strategy.staleness
        passed = [replica.passed for replica in self.living() if replica.lease is not None]
        assert not dial or not passed or max(passed) - min(passed) <= dial + 1

    def living(self) -> list[Replica]:
        return [replica for replica in self.world.replicas if not replica.mute]

    def step(self) -> None:
        """One thing happens."""
        world, rng = self.world, self.rng
        living = self.living()
        one = rng.choice(living) if living else None
        event = rng.choices(
            ["turn", "act", "tick", "partial", "die", "leave", "join", "again", "crash", "skip"],
            self.weights,
        )[0]
        if event == "act":
            world.act()
        elif event == "tick":
            world.tick(rng.choice([0.5, 3.0, 12.0]))
        elif event == "join" and len(living) < 4:
            world.replica(requested=rng.choice([None, 0, 1, 2]))
        elif event == "crash":
            self.crash()
        elif one is None:
            world.replica()
        elif event == "turn":
            one.turn()
        elif event == "partial" and one.lease is not None and not one.finished:
            if one.push(only=rng.randrange(1, 4)):
                one.tell()
                one.lease = None if one.finished else one.lease
        elif event == "again" and one.lease is not None and not one.begun:
            one.ask()
        elif event == "skip" and one.lease is not None:
            start = rng.randint(one.undecided, one.lease.samples)
            one.skip(start, rng.randint(start, one.lease.samples))
        elif event == "die":
            one.die()
        elif event == "leave":
            one.leave()

    def crash(self) -> None:
        self.world = self.world.after_crash().started()
        self.world.interleave = self.interleave


@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("warm_start", [None, {"samples": 45}])
@pytest.mark.parametrize("staleness", [None, 2])
@given(seed=st.integers(0, 2**32))
@examples(10)
def test_every_sample_is_trained_as_often_as_the_books_say(
    a_world: MakeWorld, staleness: int | None, warm_start: object, keep: str, seed: int
) -> None:
    world = a_world(
        evaluate={"every": 40, "keep": keep},
        snapshots={"every_s": 10.0},
        strategy__warm_start=warm_start,
        strategy__staleness=staleness,
        strategy__n_push=1 + seed % 2,
        deadlines={"beat_s": 2, "join_s": 10_000},
    ).started()
    world = Chaos(world, seed).walk(300)
    counts = world.applied()
    twice = world.machine.training.pushes_twice
    assert counts.min() >= 1, "nothing is skipped, on any segment"
    assert twice <= (counts - 1).sum(), "a doubled push is there once more on some segment"
    assert (counts.max(axis=0) - 1).sum() <= twice * 10 * (1 + seed % 2), "and nothing else is"
    progress = world.machine.progress
    assert progress.samples == world.machine.leases.done == 200
    assert sum(own.samples for own in progress.replicas.values()) == 200
    assert world.exported is not None
    best = progress.best
    assert best is not None
    assert world.exported[0] == (best.vector if keep == "best" else "w")
    if keep == "best":
        assert abs(world.exported[1][:, :200].sum(axis=1) - best.samples).max() <= 200


@given(seed=st.integers(0, 2**32))
@examples(10)
def test_in_lockstep_every_sample_is_in_some_round(a_world: MakeWorld, seed: int) -> None:
    world = a_world(
        evaluate={"every": 40, "keep": "best"},
        snapshots={"every_s": 10.0},
        strategy__staleness=0,
        deadlines={"beat_s": 2, "join_s": 10_000},
    ).started()
    world = Chaos(world, seed).walk(300)
    assert (world.vector()[:, : world.machine.total] > 0).all()
    assert world.machine.progress.samples == world.machine.leases.done == 200
