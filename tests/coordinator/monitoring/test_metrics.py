"""Prometheus metrics of a job with failures."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.core.messages import ProgressReport, ResourceUsage
from coordinator.core.states import State
from coordinator.monitoring.metrics import CoordinatorMetrics
from coordinator.monitoring.throughput import Speed
from dbelief.process.clock import ManualClock
from dbelief.telemetry.metric_specs import STATES
from dbelief.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


class Watched:
    """A world's machine, its collectors, and a clock that is the world's."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.clock = world, ManualClock(world.now_s)
        self.metrics = Metrics("coordinator", standing_by=True)
        self.speed = Speed(self.clock)
        self._shown = CoordinatorMetrics(self.metrics, world.job, folder, self.clock)

    def see(self, seconds: float = 0.0) -> None:
        """So long later, what is offered is brought up to date."""
        self.clock.advance(seconds)
        machine: Any = self.world.machine
        self.speed.note(machine.progress.samples)
        self._shown.update(machine, 3, self.speed, self.clock.now() - 100.0)

    def value(self, name: str, **labels: str) -> float:
        value = self.metrics.value(name, **labels)
        assert value is not None, name
        return value


def test_every_state_has_a_series() -> None:
    assert tuple(state.value for state in State) == STATES


def test_a_job_that_trains(a_world: MakeWorld, tmp_path: Path) -> None:
    world = a_world(snapshots__every_s=20, limits={"epochs": 2, "wall_s": 1000}).started()
    watched = Watched(world, tmp_path)
    watched.see()
    assert watched.value("state", state="ready") == 1
    assert (watched.value("leading"), watched.value("leader_epoch")) == (1, 3)
    for what in ("members", "members_wanted"):
        assert [watched.value(what, role=role) for role in ("ps", "worker")] == [2, 2]
    assert (watched.value("samples_wanted"), watched.value("samples_total")) == (200, 0)
    assert watched.value("eta_seconds") == 1000, "nothing is known of its speed"
    assert math.isnan(watched.value("staleness_bound")), "free running has none"
    assert (watched.value("snapshot_interval_seconds"), watched.value("progress_deadline_seconds")) == (20, 60)
    assert watched.value("disk_free_bytes") > 0
    replica = world.replicas[0]
    replica.work()
    replica.train()
    watched.see(10.0)
    assert watched.value("samples_total") == 30
    assert watched.value("eta_seconds") == pytest.approx(170 / 3)
    assert (watched.value("progress_age_seconds"), watched.value("snapshot_age_seconds")) == (0, 10)
    watched.see(7.0)
    assert (watched.value("progress_age_seconds"), watched.value("snapshot_age_seconds")) == (7, 17)


def test_deaths_and_restarts_are_counted_by_role(a_world: MakeWorld, tmp_path: Path) -> None:
    world = a_world().started()
    watched = Watched(world, tmp_path)
    replica = world.replicas[0]
    replica.work()
    replica.train(pushes=1)
    replica.die()
    world.tick(6.0)
    world.settle()
    number = 1
    world.kill_shard(number)
    world.tick(6.0)
    watched.see()
    assert [watched.value("members_lost_total", role=role) for role in ("ps", "worker")] == [1, 1]
    assert (watched.value("leases_expired_total"), watched.value("shards_away")) == (1, 1)
    assert watched.value("shards_back_total") == 0
    world.shard(requested=number)
    world.settle()
    watched.see()
    assert (watched.value("shards_away"), watched.value("shards_back_total")) == (0, 1)
    assert watched.value("takeovers_total") == 0
    world.machine.failures["coordinator"] += 1
    watched.see()
    assert watched.value("takeovers_total") == 1


@pytest.mark.parametrize(("staleness", "bound"), [(0, 0), (1, 6), (3, 14)])
def test_the_dials_bound_is_that_of_the_replicas_there_are(
    a_world: MakeWorld, tmp_path: Path, staleness: int, bound: int
) -> None:
    world = a_world(strategy__staleness=staleness, replicas=3).started()
    watched = Watched(world, tmp_path)
    watched.see()
    assert watched.value("staleness_bound") == bound


def test_rounds_that_a_quorum_ends_have_no_bound_and_are_counted(a_world: MakeWorld, tmp_path: Path) -> None:
    strategy = {"name": "diloco", "batch": 5, "steps": 2, "inner": {"name": "sgd", "rate": 0.1}, "quorum": 1}
    world = a_world(strategy=strategy).started()
    watched = Watched(world, tmp_path)
    watched.see()
    assert math.isnan(watched.value("staleness_bound"))
    machine, first = world.machine, world.replicas[0]
    moved = {"sent": 300, "shared_sent": 20, "received": 60, "residual": 0.0}
    cached = {"user": 8}, {"user": 6}
    machine.record_usage(0, first.incarnation, ResourceUsage({"compute": 3.0, "push": 0.5}, (2, 1), moved, *cached))
    report = ProgressReport(pushes=3, samples=30, steps=6, loss_sum=1.0, staleness_sum=1.0, open_round=4)
    machine.report_progress(0, first.incarnation, report, world.now_s)
    watched.see()
    names = ("rounds_total", "pushes_total", "pushes_late_total")
    assert [watched.value(name) for name in names] == [4, 3, 1]
    assert [watched.value("bytes_total", direction=way) for way in ("sent", "received")] == [320, 60]
    assert [watched.value(f"table_cache_{what}_total", table="user") for what in ("reads", "hits")] == [8, 6]
    assert [watched.value("phase_seconds_total", phase=phase) for phase in ("compute", "push")] == [3.0, 0.5]


def test_a_straggler_is_known_by_its_work(a_world: MakeWorld, tmp_path: Path) -> None:
    world = a_world(replicas=3).started()
    watched = Watched(world, tmp_path)
    for second in range(1, 5):
        for replica, pace_s in zip(world.replicas, (0.01, 0.01, 0.09), strict=True):
            world.machine.record_usage(
                replica.number, replica.incarnation, ResourceUsage({"compute": pace_s * 10 * second, "wait": 9.0})
            )
            world.machine.progress.replicas[replica.number].samples = 10 * second
        watched.see(1.0)
    assert watched.value("stragglers") == 1


def test_a_loss_that_is_no_number_is_counted(a_world: MakeWorld, tmp_path: Path) -> None:
    world = a_world().started()
    watched = Watched(world, tmp_path)
    watched.see()
    assert watched.value("losses_not_finite_total") == 0
    replica = world.replicas[0]
    lease = replica.work()
    report = ProgressReport(lease.id, position=10, pushes=1, samples=10, steps=1, loss_sum=math.nan)
    world.machine.report_progress(replica.number, replica.incarnation, report, world.now_s)
    watched.see()
    assert watched.value("losses_not_finite_total") == 1
    assert watched.value("state", state="failed") == 1
    assert watched.value("eta_seconds") == 0
