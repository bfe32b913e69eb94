"""Prometheus metrics of a job's coordinator, updated from the machine at every tick."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from dbelief.job import Diloco, Job
from dbelief.process.clock import Clock
from dbelief.telemetry.metric_specs import PHASES
from dbelief.telemetry.metrics import Metrics

from ..core.progress import OVER
from ..job.machine import JobMachine
from ..scheduling.batch_method import Sandblaster
from .rounds import round_figures
from .stragglers import Stragglers
from .throughput import Speed

_ITERATIONS_S = 60.0
"""Window of the iteration rate in seconds; iterations are rarer than samples."""


class CoordinatorMetrics:
    """Metrics of one job.

    Parameters
    ----------
    folder
        The run folder.

    Attributes
    ----------
    eta_s
        Seconds until the first limit that can be predicted; NaN where there is none.
    stragglers
        Numbers of the replicas that are far slower than the others.
    """

    def __init__(self, metrics: Metrics, job: Job, folder: Path, clock: Clock) -> None:
        self.metrics = metrics
        self.eta_s = math.nan
        self.stragglers: list[int] = []
        self._clock = clock
        self._iterations = Speed(clock, _ITERATIONS_S)
        strategy = job.strategy
        apart = strategy.staleness is None and not strategy.grouped
        self._stragglers = Stragglers([phase for phase in PHASES if phase != "wait"] if apart else ("compute", "data"))
        self._progress: tuple[object, ...] = ()
        self._progress_s = clock.now()
        self._set: str | None = None
        self._set_s = math.nan
        metrics.lead()
        metrics.leading.set(1)
        metrics.members_wanted.labels("worker").set(job.replicas)
        metrics.progress_deadline_seconds.set(job.deadlines.progress_s)
        metrics.snapshot_interval_seconds.set(math.nan if job.snapshots.every_s is None else job.snapshots.every_s)
        metrics.watch_disk(folder)

    def update(self, machine: JobMachine, leader_epoch: int, speed: Speed, elapsed_s: float) -> None:
        """Update all metrics to the current state of the job."""
        self.metrics.leader_epoch.set(leader_epoch)
        self.metrics.set_state(machine.state.value)
        self._show_members(machine)
        self._show_progress(machine, speed, elapsed_s)
        self._show_work(machine)
        self._show_ages(machine)
        if machine.training.batch is not None:
            self._show_batch(machine.training.batch, machine.progress.pushes)

    def _show_members(self, machine: JobMachine) -> None:
        metrics, members = self.metrics, machine.members
        metrics.members.labels("ps").set(len(members.alive("shard")))
        metrics.members.labels("worker").set(len(members.alive("replica", "client")))
        metrics.members_wanted.labels("ps").set(machine.resharding.wanted)
        metrics.shards_away.set(len(machine.recovery.unavailable))
        metrics.raise_to("segments_moved_total", machine.resharding.segments)
        metrics.longest_move_seconds.set(machine.resharding.longest_s)
        metrics.raise_to("shards_back_total", machine.recovery.recovered)
        metrics.shards_unfollowed.set(machine.replication.unfollowed)
        metrics.raise_to("promotions_total", machine.replication.promotions)
        failures = Counter[str]()
        for who, count in machine.failures.items():
            failures[who.partition(" ")[0]] += count
        metrics.raise_to("members_lost_total", failures["shard"] + failures["follower"], role="ps")
        metrics.raise_to("members_lost_total", failures["replica"] + failures["client"], role="worker")
        metrics.raise_to("takeovers_total", failures["coordinator"])
        replicas, now_s = machine.progress.replicas, self._clock.now()
        living = [member.number for member in members.alive("replica") if member.number in replicas]
        for number in living:
            self._stragglers.note(number, replicas[number].seconds, replicas[number].samples, now_s)
        self.stragglers = self._stragglers.detect(living)
        metrics.stragglers.set(len(self.stragglers))

    def _show_progress(self, machine: JobMachine, speed: Speed, elapsed_s: float) -> None:
        metrics, progress, leases = self.metrics, machine.progress, machine.leases
        metrics.leases_outstanding.set(len(leases.outstanding))
        metrics.lease_backlog.set(leases.backlog)
        metrics.raise_to("leases_expired_total", leases.expired)
        metrics.epoch.set(machine.epoch)
        metrics.loss.set(progress.loss)
        metrics.raise_to("losses_not_finite_total", progress.divergence.not_finite)
        metrics.raise_to("samples_total", progress.samples)
        metrics.samples_wanted.set(math.nan if machine.total is None else machine.total)
        metrics.raise_to("pushes_twice_total", machine.training.pushes_twice)
        metrics.raise_to("steps_left_out_total", progress.steps_left_out)
        metrics.raise_to("pushes_lost_total", progress.lost)
        metrics.raise_to("residual_lost_total", progress.residual({OVER, *machine.members.dead}))
        metrics.staleness_recent.set(progress.staleness)
        metrics.staleness_bound.set(_staleness_bound(machine))
        self.eta_s = self._eta_s(machine, speed, elapsed_s)
        metrics.eta_seconds.set(self.eta_s)
        if progress.last is not None:
            metrics.validation_loss.set(progress.last.loss)
            if progress.last.accuracy is not None:
                metrics.validation_accuracy.set(progress.last.accuracy)
            for name in progress.higher:
                metrics.validation_metric.labels(name).set(progress.last.measured.get(name, math.nan))

    def _show_work(self, machine: JobMachine) -> None:
        metrics, progress, rounds = self.metrics, machine.progress, round_figures(machine)
        metrics.raise_to("pushes_total", progress.pushes)
        for direction, count in progress.bytes.items():
            metrics.raise_to("bytes_total", count, direction=direction)
        for table, (reads, hits) in progress.cached.items():
            metrics.raise_to("table_cache_reads_total", reads, table=table)
            metrics.raise_to("table_cache_hits_total", hits, table=table)
        seconds = progress.seconds
        for phase in PHASES:
            metrics.raise_to("phase_seconds_total", seconds.get(phase, 0.0), phase=phase)
        if rounds is not None:
            metrics.raise_to("rounds_total", rounds.rounds)
            metrics.raise_to("pushes_late_total", rounds.late_pushes)

    def _show_ages(self, machine: JobMachine) -> None:
        now_s, progress = self._clock.now(), machine.progress
        seen = machine.state, progress.samples, progress.last, progress.test
        if seen != self._progress:
            self._progress, self._progress_s = seen, now_s
        if machine.recovery.set_id != self._set:
            self._set, self._set_s = machine.recovery.set_id, now_s
        self.metrics.progress_age_seconds.set(now_s - self._progress_s)
        self.metrics.snapshot_age_seconds.set(now_s - self._set_s)

    def _show_batch(self, batch: Sandblaster, bundles: int) -> None:
        metrics = self.metrics
        metrics.gradient_norm.set(batch.gradient_norm)
        metrics.step_length.set(batch.step_length)
        metrics.raise_to("iterations_total", batch.method.iterations)
        metrics.raise_to("evaluations_total", batch.method.evaluations)
        metrics.raise_to("bundles_total", bundles)
        launched, won = batch.backups
        metrics.raise_to("backups_launched_total", launched)
        metrics.raise_to("backups_won_total", won)

    def _eta_s(self, machine: JobMachine, speed: Speed, elapsed_s: float) -> float:
        """Seconds until the first limit that can be predicted; NaN where there is none."""
        left_s, wall_s, batch = [], machine.job.limits.wall_s, machine.training.batch
        if machine.over:
            return 0.0
        if wall_s is not None:
            left_s.append(max(0.0, wall_s - elapsed_s))
        if machine.total is not None and speed.per_second() > 0:
            left_s.append((machine.total - machine.progress.samples) / speed.per_second())
        if batch is not None and batch.method.rules.iterations is not None:
            self._iterations.note(batch.method.iterations)
            if self._iterations.per_second() > 0:
                left = batch.method.rules.iterations - batch.method.iterations
                left_s.append(left / self._iterations.per_second())
        return min(left_s, default=math.nan)


def _staleness_bound(machine: JobMachine) -> float:
    """(P - 1)(2 N + 1) for P replicas and bound N >= 1 (docs/decisions/0005); 0 for N = 0; NaN without a bound.

    A round that a quorum ends bounds nothing: a push may be late by any number of rounds.
    """
    strategy = machine.job.strategy
    staleness = strategy.staleness
    if staleness is None or (isinstance(strategy, Diloco) and strategy.quorum is not None):
        return math.nan
    pushers = len(machine.members.alive("replica", "client"))
    return float(max(0, pushers - 1) * (2 * staleness + 1) if staleness else 0)
