"""Bundles on a replica: their sums, prefetching, and failing models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dbelief.arrays.backend import aligned_float32, select_backend
from dbelief.core.layout import Layout
from dbelief.core.push import Push, Pusher, PushResult
from dbelief.core.ranks import RankGroup
from dbelief.errors import Rejected, Unavailable
from dbelief.nn import Batch
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.phases import PhaseTimer
from worker.comm import Communicator, run_ranks
from worker.strategies.sandblaster import BundleWorker

SIZE = 6
TRIAL = np.arange(SIZE, dtype=np.float32)
SAMPLES = np.random.default_rng(0).standard_normal((100, SIZE)).astype(np.float32)


class Shards:
    """Keeps what is pushed."""

    def __init__(self) -> None:
        self.placement = SimpleNamespace(spans=[None])
        self.pulls = 0
        self.refuses = 0  # so many pulls
        self.located = 0
        self.pushed: list[tuple[int, int | None, np.ndarray]] = []
        self.error: Exception | None = None

    def array(self, size: int) -> np.ndarray:
        return aligned_float32(size)

    def locate(self, at_least: int) -> None:
        self.located = at_least

    def pull(self, out: np.ndarray, versions: np.ndarray, vector: str) -> None:
        assert vector == "trial"
        self.pulls += 1
        if self.pulls <= self.refuses:
            raise Rejected("no vector 'trial' yet")
        out[:] = TRIAL

    def push(self, values: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        if self.error is not None:
            raise self.error
        self.pushed.append((push.clock, push.bundle, np.array(values)))
        return PushResult(0.0, 0)


class Coordinator:
    """Gives bundles ahead, and hears of them."""

    def __init__(self) -> None:
        self.ahead: list[wire.Bundle] = []
        self.asked: list[tuple[int, list[int]]] = []
        self.told: list[wire.BundleDone] = []
        self.failures: list[wire.BundleFailed] = []
        self.held = threading.Event()  # set: it answers
        self.held.set()

    def next_bundle(self, turn: int, holds: list[int]) -> wire.Bundle | None:
        self.asked.append((turn, sorted(holds)))
        return self.ahead.pop(0) if self.ahead else None

    def report_alive(self) -> None:
        pass

    def done(self, done: wire.BundleDone) -> None:
        assert self.held.wait(60)
        self.told.append(done)

    def failed(self, failed: wire.BundleFailed) -> None:
        self.failures.append(failed)


class Model:
    """Half the squared distance to a sample, and a wish to fail."""

    def __init__(self) -> None:
        self.fails = False

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"w": TRIAL}

    def loss_and_gradient(self, views: Any, batch: Batch, out: Any) -> float:
        if self.fails:
            raise ValueError("no")
        away = views["w"] - batch.inputs
        out["w"][:] = away.mean(axis=0)
        return float((away**2).sum(axis=1).mean() / 2)


def gather() -> Callable[[int, int, int], Batch]:
    """As a replica's own: what one call gives is overwritten by its next."""
    room = np.empty((10, SIZE), np.float32)

    def call(epoch: int, start: int, stop: int) -> Batch:
        room[:] = np.nan
        inputs = room[: stop - start]
        inputs[:] = SAMPLES[start:stop]
        return Batch(inputs, np.zeros(stop - start))

    return call


class World:
    def __init__(self, ranks: RankGroup | None = None) -> None:
        self.shards, self.coordinator, self.model = Shards(), Coordinator(), Model()
        part, shards = Layout.of({"w": TRIAL}).part(0), cast("ShardedParameterClient", self.shards)
        gathers = gather(), gather()
        backend, pusher = select_backend("cpu"), Pusher(0, 1)
        self.bundles = BundleWorker(
            self.model, part, backend, shards, pusher, gathers, PhaseTimer(), self.coordinator, ranks=ranks
        )

    def bundle(self, number: int, start: int, stop: int, turn: int = 1) -> wire.Bundle:
        return wire.Bundle(pass_number=turn, bundle=number, epoch=0, start=start, stop=stop, portion=10)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with closing(made.bundles):
        yield made


def check(world: World, number: int, start: int, stop: int) -> None:
    """What lies on the shards, and was told of, is the sum over these samples."""
    (values,) = [values for _, bundle, values in world.shards.pushed if bundle == number]
    (told,) = [told for told in world.coordinator.told if told.bundle == number]
    away = TRIAL - SAMPLES[start:stop].astype(np.float64)
    np.testing.assert_allclose(values, away.sum(axis=0), rtol=1e-5)
    assert told.samples == stop - start
    assert told.loss_sum == pytest.approx((away**2).sum() / 2, rel=1e-6)
    assert told.seconds > 0


def test_each_bundle_is_the_sum_over_its_samples(world: World) -> None:
    world.coordinator.ahead = [world.bundle(2, 35, 55), world.bundle(3, 90, 100)]
    following = world.bundles.compute(world.bundle(1, 0, 35))
    while following is not None:
        following = world.bundles.compute(following)
    world.bundles.close()
    for number, start, stop in ((1, 0, 35), (2, 35, 55), (3, 90, 100)):
        check(world, number, start, stop)
    assert world.shards.pulls == 1, "once for each pass"


def test_each_pass_is_fetched_by_the_placement_of_its_bundle(world: World) -> None:
    for turn in (1, 2):
        bundle = world.bundle(1, 0, 10, turn)
        bundle.placement_epoch = 10 * turn
        world.bundles.compute(bundle)
        assert world.shards.located == 10 * turn
    assert world.shards.pulls == 2


def test_prefetch_reports_held_bundles(world: World) -> None:
    held = world.coordinator.held
    held.clear()
    world.bundles.compute(world.bundle(1, 0, 30))
    world.bundles.compute(world.bundle(2, 30, 60))
    assert world.coordinator.asked == [(1, [1]), (1, [1, 2])]
    held.set()
    world.bundles.close()
    assert world.bundles.holds == []


def test_failing_model_is_reported_and_leaves_no_state(world: World) -> None:
    world.model.fails = True
    for number in range(1, 5):  # more often than there are buffers
        assert world.bundles.compute(world.bundle(number, 0, 20)) is None
    world.model.fails = False
    world.bundles.compute(world.bundle(5, 20, 50))
    world.bundles.close()
    assert [(failed.pass_number, failed.bundle) for failed in world.coordinator.failures] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (1, 4),
    ]
    assert world.coordinator.failures[0].reason.startswith("ValueError: no (")
    check(world, 5, 20, 50)


def test_failed_push_is_raised_at_the_next_check(world: World) -> None:
    world.shards.error = Unavailable("shard 0")
    world.bundles.compute(world.bundle(1, 0, 10))
    world.bundles.close()
    with pytest.raises(Unavailable, match="shard 0"):
        world.bundles.check()
    assert world.coordinator.told == []


def test_trial_refused_to_one_rank_is_fetched_again_by_all() -> None:
    def rank(comm: Communicator) -> tuple[int, list[str], list[int]]:
        world = World(comm)
        with closing(world.bundles):
            world.shards.refuses = comm.rank  # rank 1 is, once
            for number in (1, 2):
                world.bundles.compute(world.bundle(number, 0, 10))
                world.bundles.flush()
                comm.barrier()
        reasons = [failed.reason for failed in world.coordinator.failures]
        return world.shards.pulls, reasons, [told.bundle for told in world.coordinator.told]

    assert run_ranks(2, rank, 5.0) == [(2, ["rank 1: no vector 'trial' yet"], [2])] * 2
