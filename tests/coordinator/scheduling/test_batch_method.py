"""A batch method's whole job without processes: deaths do not change the iterations."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator.core.effects import RunProgram
from coordinator.core.messages import Assignment, BundleLease, BundleResult, EvaluationLease, Wait, WorkRequest
from coordinator.core.states import DatasetSizes, State
from coordinator.monitoring.summary import summary_of
from coordinator.sandblaster.lbfgs_driver import Phase
from coordinator.scheduling.batch_method import Sandblaster
from dbelief.core.push import Push, Pusher
from dbelief.job import Sandblaster as Settings
from dbelief.sparse.table import pack
from tests.coordinator.cluster.test_recovery import restart_shard
from tests.local_vectors import pseudo_gradient

if TYPE_CHECKING:
    from tests.coordinator.replica import Replica
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]
STRATEGY = {"name": "sandblaster", "portion": 7, "bundle": 3, "iterations": 8, "l2": 0.01}
SHAPE = DatasetSizes(train=100, validation=0, test=0)


def loss_and_gradient(w: np.ndarray, samples: range) -> tuple[float, np.ndarray]:
    """Sums over samples, each of which draws w (segments, numbers) to a point of its own."""
    scales = np.geomspace(1, 30, w.size).reshape(w.shape)
    loss, gradient = 0.0, np.zeros(w.shape)
    for sample in samples:
        away = w - np.random.default_rng(sample).standard_normal(w.shape)
        loss += float((scales * away**2).sum()) / 2
        gradient += scales * away
    return loss, gradient


class Batch:
    """A world whose replicas compute bundles, one small step at a time."""

    def __init__(self, make: MakeWorld, **changes: Any) -> None:
        fields: dict[str, Any] = {"limits": {"epochs": 500}, "shards": 2, "replicas": 3}
        if "snapshots" in changes:
            fields["snapshots"] = changes.pop("snapshots")
        self.world = make(SHAPE, strategy={**STRATEGY, **changes}, **fields)
        self.world.started()
        self.holds: dict[
            int, tuple[BundleLease, float, np.ndarray, list[int]]
        ] = {}  # by life: what is not pushed yet too

    @property
    def method(self) -> Any:
        batch = self.world.machine.training.batch
        assert batch is not None
        return batch.method

    def step(self, replica: Replica) -> None:
        """Ask for work and compute it; or push one more segment of it; or tell that it is done."""
        world, life = self.world, replica.incarnation
        if life not in self.holds:
            work = world.machine.lease(WorkRequest(replica.number, life), world.now_s)
            if isinstance(work, EvaluationLease):
                world.machine.evaluated(replica.number, life, work.id, 0.5, None, world.now_s)
            elif isinstance(work, BundleLease):
                samples = range(work.start, work.stop)
                loss, gradient = loss_and_gradient(world.vector("trial").astype(np.float64), samples)
                self.holds[life] = work, loss, gradient.astype(np.float32), list(range(len(world.segments)))
            return
        work, loss, gradient, left = self.holds[life]
        if left:
            self.push(replica, left.pop(0))
            return
        del self.holds[life]
        self.tell(replica, work, loss)

    def push(self, replica: Replica, index: int) -> None:
        work, _, gradient, _ = self.holds[replica.incarnation]
        pusher = Pusher(replica.number, replica.incarnation)
        packed, values = work.bundle % 2 == 0, gradient[index]
        push = Push(pusher, 0, vector="accrued", clock=work.pass_number, bundle=work.bundle, packed=packed)
        shard = next(shard for shard in self.world.shards if index in shard.segments)
        shard.push(push, index, pack(np.arange(len(values)), values) if packed else values)

    def tell(self, replica: Replica, work: BundleLease, loss: float) -> None:
        number, life, samples = replica.number, replica.incarnation, work.stop - work.start
        self.world.machine.bundle_done(
            number, life, BundleResult(work.pass_number, work.bundle, loss, samples), self.world.now_s
        )

    def again(self, replica: Replica, rng: random.Random) -> None:
        """Push a segment or tell of a bundle, and do it once more later: the answer was lost."""
        if replica.incarnation not in self.holds:
            return
        work, loss, _, left = self.holds[replica.incarnation]
        if left:
            self.push(replica, rng.randrange(4))
        else:
            self.tell(replica, work, loss)

    def run(self, disturb: Callable[[], None] = lambda: None) -> Batch:
        for _ in range(200_000):
            if self.world.machine.over:
                break
            for replica in [one for one in self.world.replicas if not one.mute]:
                self.step(replica)
            disturb()
            self.world.tick(0.01)
            self.world.settle()
        assert self.world.machine.state is State.DONE, self.world.machine.reason
        return self


@pytest.fixture(scope="module", params=[0.0, 0.5], ids=["l-bfgs", "owl-qn"])
def undisturbed(a_world: MakeWorld, request: pytest.FixtureRequest) -> Batch:
    return Batch(a_world, l1=request.param).run()


def like(other: Batch, make: MakeWorld) -> Batch:
    """Another world of the same job."""
    settings = other.world.job.strategy
    assert isinstance(settings, Settings)
    return Batch(make, l1=settings.l1)


def test_it_comes_to_the_optimum(undisturbed: Batch) -> None:
    world = undisturbed.world
    assert world.machine.reason == "8 iterations done"
    w = world.vector().astype(np.float64)
    _, start = loss_and_gradient(np.zeros_like(w), range(100))
    _, end = loss_and_gradient(w, range(100))
    penalty = undisturbed.method.penalty
    slope = pseudo_gradient(w, end / 100 + 0.01 * w, penalty.l1 if penalty is not None else 0.0)
    assert np.linalg.norm(slope) < 0.1 * np.linalg.norm(start / 100)
    rows = world.events("iteration")
    assert [row["iteration"] for row in rows] == list(range(1, 9))
    assert all(later["loss"] < earlier["loss"] for earlier, later in itertools.pairwise(rows))
    assert world.machine.progress.samples == 100 * undisturbed.method.evaluations
    assert world.exported is not None


def test_summary_has_batch_method_figures(undisturbed: Batch) -> None:
    machine, last = undisturbed.world.machine, undisturbed.world.events("iteration")[-1]
    batch, summary = machine.training.batch, summary_of(machine, wall_s=1.0)
    assert batch is not None
    assert [summary[key] for key in ("iterations", "loss", "gradient_norm", "evaluations")] == [
        last[key] for key in ("iteration", "loss", "gradient_norm", "evaluations")
    ]
    assert (summary["backups_launched"], summary["backups_won"]) == batch.backups


def test_every_pass_is_logged(undisturbed: Batch) -> None:
    world = undisturbed.world
    rows = world.events("pass")
    assert [row["number"] for row in rows] == list(range(1, undisturbed.method.evaluations + 1))
    assert [row["iteration"] for row in rows] == sorted(row["iteration"] for row in rows)
    assert {row["iteration"] for row in rows} == set(range(1, 9))
    assert {(row["portions"], row["samples"]) for row in rows} == {(15, 100)}
    for row in rows:
        starts, stops = [run[5] for run in row["runs"]], [run[6] for run in row["runs"]]
        assert (min(starts), max(stops)) == (0.0, row["seconds"])
        assert sum(run[7] for run in row["runs"]) == row["bundles"]
        assert sum(run[4] for run in row["runs"]) == row["launched"]
        assert sum(run[4] and run[7] for run in row["runs"]) == row["won"]
    batch, last = world.machine.training.batch, world.events("iteration")[-1]
    assert batch is not None
    assert batch.backups[0] == sum(row["launched"] for row in rows) > 0
    assert batch.backups[1] == sum(row["won"] for row in rows)
    assert world.machine.progress.pushes == sum(row["bundles"] for row in rows)
    assert (batch.step_length, batch.gradient_norm) == (last["step"], last["gradient_norm"])


@pytest.mark.parametrize("seed", range(3))
def test_iterations_survive_any_deaths_and_takeovers(a_world: MakeWorld, undisturbed: Batch, seed: int) -> None:
    """Replicas die with half a bundle pushed, calls are made twice, and other coordinators take over, at any moment."""
    rng = random.Random(seed)
    batch = like(undisturbed, a_world)
    world, happened = batch.world, {"deaths": 0, "takeovers": 0}

    def disturb() -> None:
        chance = rng.random()
        living = [one for one in world.replicas if not one.mute]
        if chance < 0.02 and happened["deaths"] < 10:
            victim = rng.choice(living)
            world.machine.leave("replica", victim.number, victim.incarnation, "killed", world.now_s)
            victim.mute = True
            world.replica()
            happened["deaths"] += 1
        elif chance < 0.04 and happened["takeovers"] < 10 and world.state() is State.READY:
            world.take_over()
            happened["takeovers"] += 1
        elif chance < 0.1:
            batch.again(rng.choice(living), rng)

    batch.run(disturb)
    assert happened["deaths"] >= 3
    assert happened["takeovers"] >= 3
    keys = ("iteration", "evaluations", "skipped")
    rows, expected = (one.world.events("iteration") for one in (batch, undisturbed))
    known = {row["iteration"]: row for row in rows}  # one that died may have noted what was done again
    assert sorted(known) == list(range(1, 9))
    for row in expected:
        assert [known[row["iteration"]][key] for key in keys] == [row[key] for key in keys]
        assert known[row["iteration"]]["loss"] == pytest.approx(row["loss"], rel=1e-6)


def test_in_order_the_bits_are_the_same_for_any_replicas(a_world: MakeWorld) -> None:
    found = set()
    for replicas in (1, 2, 5):
        batch = Batch(a_world, ordered=True, iterations=4)
        for _ in range(replicas - 3):
            batch.world.replica()
        for one in batch.world.replicas[replicas:]:
            one.mute = True
            batch.world.machine.leave("replica", one.number, one.incarnation, "not needed", batch.world.now_s)
        batch.run()
        found.add(batch.world.vector().tobytes())
    assert len(found) == 1


def test_evaluation_and_parameter_write_exclude_each_other(a_world: MakeWorld) -> None:
    batch = Batch(a_world)
    world, machine = batch.world, batch.world.machine
    one, two = world.replicas[:2]
    while batch.method.phase is not Phase.SLOPE:
        for replica in world.replicas:
            batch.step(replica)
        if batch.method.phase is not Phase.SLOPE:
            world.settle()
    machine.training.evaluations.request("validation", "w")
    lease = machine.lease(WorkRequest(one.number, one.incarnation), world.now_s)
    assert isinstance(lease, EvaluationLease)
    world.settle()
    assert batch.method.phase == Phase("accept"), "its first trial is good enough"
    machine.evaluated(one.number, one.incarnation, lease.id, 0.5, None, world.now_s)
    assert any(isinstance(action, RunProgram) for action in machine.actions)
    machine.training.evaluations.request("validation", "w")
    assert isinstance(machine.lease(WorkRequest(two.number, two.incarnation), world.now_s), Wait)
    world.settle()
    assert batch.method.iterations == 1
    assert isinstance(machine.lease(WorkRequest(two.number, two.incarnation), world.now_s), EvaluationLease)


def test_late_or_repeated_results_change_nothing(a_world: MakeWorld) -> None:
    batch = Batch(a_world)
    world, machine = batch.world, batch.world.machine
    one = world.replicas[0]
    batch.step(one)
    work, loss, *_ = batch.holds[one.incarnation]
    batch.tell(one, work, loss)
    samples = machine.progress.samples
    assert samples == work.stop - work.start
    batch.tell(one, work, loss)
    machine.bundle_done(
        one.number, one.incarnation, BundleResult(work.pass_number + 1, work.bundle + 1, loss, 5), world.now_s
    )
    machine.bundle_done(
        one.number, one.incarnation + 77, BundleResult(work.pass_number, work.bundle + 1, loss, 5), world.now_s
    )
    assert machine.progress.samples == samples


@pytest.mark.parametrize("seed", range(3))
def test_where_a_shard_dies_all_go_back_to_the_last_set(a_world: MakeWorld, undisturbed: Batch, seed: int) -> None:
    rng = random.Random(100 + seed)
    batch = like(undisturbed, a_world)
    world, happened = batch.world, {"deaths": 0, "sets": 0, "takeovers": 0}

    def disturb() -> None:
        chance = rng.random()
        if world.state() is not State.READY or world.machine.recovery.unavailable:
            return
        if chance < 0.02 and not world.machine.training.snapshots.running:
            world.machine.actions.append(world.machine.training.begin_set())
            happened["sets"] += 1
        elif chance < 0.03 and happened["deaths"] < 5:
            restart_shard(world, rng.randrange(2))
            happened["deaths"] += 1
        elif chance < 0.04 and happened["takeovers"] < 5:
            world.take_over()
            happened["takeovers"] += 1

    batch.run(disturb)
    assert happened["deaths"] >= 1
    expected = undisturbed.world.events("iteration")
    last = {row["iteration"]: row for row in world.events("iteration")}
    assert sorted(last) == list(range(1, 9))
    for row in expected:
        assert last[row["iteration"]]["loss"] == pytest.approx(row["loss"], rel=1e-6)
    back = sum(row["iterations"] for row in world.events("rolled_back"))
    assert len(world.events("iteration")) <= 8 + back + happened["takeovers"]
    assert world.events("rolled_back")


def test_a_shard_that_dies_before_training_holds_nothing_up(a_world: MakeWorld) -> None:
    world = a_world(SHAPE, strategy=STRATEGY, limits={"epochs": 500}, shards=2, replicas=1).all_shards()
    replica = world.replica()
    world.settle()
    restart_shard(world, 1)
    world.settle()
    assert replica.is_initialiser()
    replica.initialise()
    world.settle()
    assert world.state() is State.READY
    assert isinstance(world.machine.lease(WorkRequest(replica.number, replica.incarnation), world.now_s), BundleLease)


def test_a_loss_that_is_not_finite_ends_it_by_name(a_world: MakeWorld) -> None:
    batch = Batch(a_world)
    for _ in range(200):
        for replica in batch.world.replicas:
            if replica.incarnation in batch.holds:
                work, _, gradient, left = batch.holds[replica.incarnation]
                batch.holds[replica.incarnation] = work, float("nan"), gradient, left
            batch.step(replica)
        batch.world.settle()
        if batch.world.machine.over:
            break
    assert batch.world.state() is State.FAILED
    assert batch.world.machine.reason == "the loss is nan after 0 iterations"


def test_prefetch_gets_no_evaluation_and_no_old_pass(a_world: MakeWorld) -> None:
    batch = Batch(a_world)
    world, machine = batch.world, batch.world.machine
    one = world.replicas[0]
    batch.step(one)
    work, *_ = batch.holds[one.incarnation]
    machine.training.evaluations.request("validation", "w")
    asks = WorkRequest(one.number, one.incarnation, work.pass_number, (work.bundle,), prefetch=True)
    following = machine.lease(asks, world.now_s)
    assert isinstance(following, BundleLease)
    assert following.bundle != work.bundle
    stale = WorkRequest(one.number, one.incarnation, work.pass_number - 1, (work.bundle, following.bundle))
    machine.training.evaluations.clear()
    assert machine.lease(stale, world.now_s) == work, "those numbers mean another pass"


def test_slow_replicas_get_smaller_bundles(a_world: MakeWorld) -> None:
    """Also one that is always too late: its copies win, and it tells of its bundles all the same."""
    batch = Batch(a_world, portion=2, bundle=8)
    world, machine = batch.world, batch.world.machine
    slow, quick = world.replicas[:2]
    told = BundleResult(machine.training.batch.method.number, 99, 0.0, 4, seconds=20.0)  # type: ignore[union-attr]
    machine.bundle_done(slow.number, slow.incarnation, told, world.now_s)
    machine.bundle_done(quick.number, quick.incarnation, told._replace(seconds=1.0), world.now_s)
    sizes = []
    for replica in (slow, quick):
        work = machine.lease(WorkRequest(replica.number, replica.incarnation), world.now_s)
        assert isinstance(work, BundleLease)
        sizes.append((work.stop - work.start) // 2)
    assert sizes == [1, 8]


def test_failing_samples_end_the_job_by_name(a_world: MakeWorld) -> None:
    batch = Batch(a_world)
    world, machine = batch.world, batch.world.machine
    work: Assignment
    for replica in world.replicas:
        work = machine.lease(WorkRequest(replica.number, replica.incarnation), world.now_s)
        while isinstance(work, BundleLease) and work.start > 0:  # the first portions are the bad ones
            batch.holds[replica.incarnation] = work, 0.0, np.zeros((4, 1), np.float32), []
            batch.tell(replica, work, 0.0)
            work = machine.lease(WorkRequest(replica.number, replica.incarnation), world.now_s)
        assert isinstance(work, BundleLease)
        assert world.state() is State.READY
        who = replica.number, replica.incarnation
        machine.bundle_failed(*who, work.pass_number, work.bundle, "ValueError: bad pixel", world.now_s)
        machine.bundle_failed(*who, work.pass_number, work.bundle, "ValueError: bad pixel", world.now_s)
    assert world.state() is State.FAILED
    assert isinstance(work, BundleLease)
    assert machine.reason == f"samples 0 to {work.stop - 1} failed 3 times: ValueError: bad pixel"
    world.settle()
    assert [row["replica"] for row in world.events("bundle_failed")] == [r.number for r in world.replicas]


def test_backup_counts_survive_passes_and_restore() -> None:
    batch = Sandblaster(Settings(name="sandblaster", portion=1, bundle=1), 2)
    kept = [batch.state()]
    for turn in range(1, 4):
        (program,) = [action for action in batch.advance({}) if isinstance(action, RunProgram)]
        batch.program_ran(program.ticket, [])
        for life in (1, 2, 3):
            assert batch.request_lease(WorkRequest(life, life), range(3), float(turn)) is not None
        kept.append(batch.state())
        assert batch.backups == (turn, 0)
        batch.rewind(kept[0])
        assert batch.backups == (turn, 0), "what is made again is computed again"
    for before, again in ((kept[3], Sandblaster.restore), (kept[3], Sandblaster.rewind)):
        successor = Sandblaster(Settings(name="sandblaster", portion=1, bundle=1), 2)
        again(successor, json.loads(json.dumps(before)))
        assert successor.backups == (3, 0)
    assert math.isnan(successor.step_length)
    assert math.isnan(successor.gradient_norm)


def test_computing_replica_expires_despite_prefetching(a_world: MakeWorld) -> None:
    batch = Batch(a_world, portion=50, bundle=1)
    world, machine = batch.world, batch.world.machine
    one = world.replicas[0]
    work = machine.lease(WorkRequest(one.number, one.incarnation), world.now_s)
    assert isinstance(work, BundleLease)
    asks = WorkRequest(one.number, one.incarnation, work.pass_number, (work.bundle,), prefetch=True)
    assert isinstance(machine.lease(asks, world.now_s), Wait)
    for _ in range(5):  # it tells now and then that it comes on
        world.tick(100.0)
        machine.record_contact(one.number, one.incarnation, world.now_s)
    assert one.incarnation in {m.incarnation for m in machine.members.alive("replica")}
    world.tick(121.0)
    assert one.incarnation not in {m.incarnation for m in machine.members.alive("replica")}
