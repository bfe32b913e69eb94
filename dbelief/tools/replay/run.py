"""Replay of a run's folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dbelief.arrays.backend import Backend, aligned, select_backend
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.core.absent import Ranges, of_tensors
from dbelief.core.layout import Layout, SegmentSpan, nominal_length
from dbelief.core.lease import FetchPushSchedule
from dbelief.core.push import Pusher
from dbelief.data import Order, Samples, load
from dbelief.errors import JobError
from dbelief.job import Asynchronous, Diloco, Downpour, Elastic, Job, load_job
from dbelief.nn import Batch, Model, absent_of
from dbelief.optim import make_rule
from dbelief.optim.gradients import clip_by_norm
from dbelief.rpc.wire.payloads import Codecs
from dbelief.rundir.record import ComputedBatch, read_record, read_rounds
from dbelief.training.elastic_weights import ElasticWeights
from dbelief.training.local_rounds import DilocoSettings, LocalRounds
from dbelief.training.schedule import learning_rate, total_samples
from dbelief.training.session import build_model, initial_values, load_initial_from_run

from .codec_replay import CodecReplay
from .exchange_replay import Worker, replay_exchanges
from .push_replay import GradientOf, replay
from .round_replay import Compute, replay_rounds


def replay_run(run_folder: Path) -> np.ndarray:
    """Replay `runs/NAME` from its record, its job file, the job's data and the run that it started from, if any.

    Returns
    -------
    (N,) float32
        The run's last parameters, in the order of `initial_values`'s layout. They are what model.safetensors holds,
        unless the job kept the best evaluation's. The same bits need the same kind of machine and the same BLAS as
        the run had.

    Raises
    ------
    JobError
        The job logged nothing, or too little to determine its result.
    DataError, ModelError
        A log cannot be read, or data, model or that run are missing.
    RuntimeFailure
        The logs are incomplete: a program was killed, or the run was resumed.
    SnapshotError
        The description of the run's newest snapshot set cannot be read.
    """
    job = load_job(run_folder / "job.yaml")
    _check_job(job, run_folder)
    data, backend = load(job.data, job.folder, ("train",)), select_backend(job.device)
    assert data.train is not None, "a data source without a training set"
    model, _ = build_model(job, data, backend)
    layout, initial = initial_values(job, model)
    load_initial_from_run(job, layout, initial)
    spans = _segments(job, run_folder, layout)
    strategy = job.strategy
    at_shards = strategy.at_shards
    rule = make_rule(at_shards.name, at_shards.model_dump(exclude={"name", "rate"}))
    gather = _gather(job, data.train.read_by(model, backend), backend)
    wire = CodecReplay(Codecs.of(job.wire, layout.starts), spans)
    rate = functools.partial(learning_rate, job, total=total_samples(job.limits, len(data.train)))
    with threadpool_limits(job.threads):  # as in replicas: BLAS may sum in another order on more threads
        if isinstance(strategy, Elastic):
            applied, computed = read_record(
                run_folder / "record", FetchPushSchedule(strategy.batch, n_push=strategy.period)
            )

            def worker() -> Worker:
                own = ElasticWeights(
                    model, layout.part(0), backend, strategy.momentum, strategy.nesterov, strategy.clip_norm
                )
                return _Worker(own, gather, rate, job, wire)

            return replay_exchanges(initial, spans, rule, applied, computed, worker)
        if isinstance(strategy, Diloco):
            settings = DilocoSettings.of(strategy, rate)

            def replica(pusher: Pusher) -> LocalRounds:
                return LocalRounds(layout.part(0), backend, spans, pusher, settings)

            rounds = read_rounds(run_folder / "record")
            compute = _compute_with(model, gather, layout)
            return replay_rounds(initial, spans, rule, *rounds, replica, compute, wire)
        assert isinstance(strategy, Downpour | Asynchronous), "no other strategy can be recorded"
        applied, computed = read_record(run_folder / "record", FetchPushSchedule(strategy.batch))
        gradient_of = _gradient_of(strategy, gather, model, layout, backend, wire)
        return replay(initial, spans, rule, applied, computed, gradient_of)


def _segments(job: Job, run_folder: Path, layout: Layout) -> list[SegmentSpan]:
    """Segments of the run's shards: as its newest set says, for an earlier version may have cut them in another way."""
    nominal = nominal_length(layout.size, job.shards)
    sets = LocalSets(run_folder / "snapshots")
    if complete := sets.complete():
        nominal = int(sets.read(complete[-1]).get("nominal_length", nominal))
    return layout.segments(nominal)


def _check_job(job: Job, run_folder: Path) -> None:
    strategy = job.strategy
    if not isinstance(strategy, Downpour | Asynchronous | Elastic | Diloco) or strategy.grouped:
        raise JobError(f"{run_folder}: cannot be replayed: strategy is {strategy.name}, whose pushes have no order")
    pushes = isinstance(strategy, Downpour | Asynchronous)
    reasons = {
        "record is false: nothing was logged": not job.record,
        "data.source is none: gradients came from a program of its own": job.data.source == "none",
        f"n_fetch is {strategy.n_fetch}: local steps are not logged": pushes and strategy.n_fetch > 1,
        f"n_push is {strategy.n_push}: sums of gradients are not logged": pushes and strategy.n_push > 1,
        "staleness is 0: no timing decides its rounds": strategy.staleness == 0 and not isinstance(strategy, Diloco),
    }
    for reason, holds in reasons.items():
        if holds:
            raise JobError(f"{run_folder}: cannot be replayed: {reason}")


Gather = Callable[[int, int, int], Batch]


def _gather(job: Job, train: Samples, backend: Backend) -> Gather:
    """The mini-batch by (epoch, start, stop); it is valid until the next one is requested."""
    buffer = train.buffer(job.samples_at_once)

    @functools.lru_cache(maxsize=4)
    def order(epoch: int) -> Order:
        return train.order(job.seed, epoch)

    def gather(epoch: int, start: int, stop: int) -> Batch:
        buffer.expect(order(epoch), start, stop)
        return train.gather(order(epoch)[start:stop], buffer).on(backend)

    return gather


def _gradient_of(
    strategy: Downpour | Asynchronous, gather: Gather, model: Model, layout: Layout, backend: Backend, wire: CodecReplay
) -> GradientOf:
    """The gradient as a replica of the job computes it, after the wire codecs."""
    out = backend.to_device(aligned(layout.size, np.float32))
    out_views, part = layout.views(out), layout.part(0)

    def gradient(values: np.ndarray, row: ComputedBatch) -> tuple[np.ndarray, Ranges]:
        fetched = wire.pulled(values)
        batch = gather(row.epoch, row.start, row.stop)
        model.loss_and_gradient(layout.views(backend.to_device(fetched)), batch, out_views)
        clip_by_norm(backend.xp, out, strategy.clip_norm)
        absent = of_tensors(part, absent_of(model))
        return wire.pushed(backend.to_host(out), row.pusher, absent), absent

    return gradient


def _compute_with(model: Model, gather: Gather, layout: Layout) -> Compute:
    """The gradient of a replica's own step."""

    def compute(local: LocalRounds, epoch: int, start: int, stop: int) -> tuple[int, float, frozenset[str]]:
        batch = gather(epoch, start, stop)
        loss = model.loss_and_gradient(layout.views(local.values), batch, layout.views(local.gradient))
        return len(batch), float(loss), frozenset(absent_of(model))

    return compute


@dataclass(frozen=True)
class _Worker:
    """An elastic-averaging worker, configured like the job's."""

    own: ElasticWeights
    gather: Gather
    rate: Callable[[int], float]
    job: Job
    wire: CodecReplay

    def begin(self, centre: np.ndarray) -> None:
        self.own.begin(self.wire.pulled(centre))

    def sent(self) -> np.ndarray:
        return self.wire.pushed(np.array(self.own.backend.to_host(self.own.values)))

    def train(self, row: ComputedBatch, centre: np.ndarray | None) -> None:
        assert isinstance(self.job.strategy, Elastic), "no other worker exchanges"
        rate = self.rate(row.samples_before)
        self.own.compute(self.gather(row.epoch, row.start, row.stop))
        centre = self.wire.pulled(centre) if centre is not None else None
        self.own.step(rate, self.job.strategy.moving_rate(rate, self.job.replicas), centre)
