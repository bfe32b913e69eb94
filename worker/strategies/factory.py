"""Factory of a replica's trainer from the job's strategy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np

from dbelief import job
from dbelief.arrays.backend import Allocate
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import Push, PushResult, PushStats
from dbelief.data import Samples
from dbelief.nn import Model, Network
from dbelief.optim.gradients import check_finite
from dbelief.training.local_rounds import DilocoSettings
from dbelief.training.phases import PhaseTimer
from dbelief.training.schedule import learning_rate, total_samples
from dbelief.training.session import Session

from ..pipeline.batches import BatchLoader, BatchSource
from ..pipeline.fetch_thread import Fetcher
from ..pipeline.table_rows import TableRows
from ..rendezvous import Rendezvous
from .diloco import Diloco
from .downpour import Downpour, DownpourSettings
from .elastic import Elastic, ElasticSettings
from .group import GroupTrainer, ShardAccess
from .group_methods import AllreduceEasgd, AllreduceSgd
from .sandblaster import BundleReporter, BundleWorker
from .touched import column_tensor


def pushing(
    session: Session,
    model: Model,
    strategy: job.Downpour | job.Asynchronous | job.SyncSgd | job.Elastic | job.Diloco,
    train: Samples,
    phases: PhaseTimer,
    acknowledged: Callable[[PushStats, PushResult], None],
    noted: Callable[[DataLease, int, int, np.ndarray], None] | None,
    rows: TableRows | None = None,
    batches: BatchSource | None = None,
    scratch: Allocate | None = None,
    fetcher: Fetcher | None = None,
) -> Downpour | Elastic | Diloco:
    """Create the trainer of a replica that pushes to the shards: Downpour SGD, elastic averaging, or DiLoCo.

    Where one process has many replicas, which train leases one after the other, they may share `batches` and memory:
    see `Elastic` for `scratch`, and `Downpour` for `fetcher`.
    """
    batches = batches or BatchLoader(train, strategy.batch, session.job.seed, session.backend)
    first = model, session.part, session.backend, session.parameters, session.pusher, batches
    last = phases, acknowledged, noted, session.ranks.total
    rate = _rate(session, train)
    if isinstance(strategy, job.Elastic):
        settings = ElasticSettings(
            FetchPushSchedule(strategy.batch, strategy.n_fetch, strategy.n_push),
            rate,
            functools.partial(strategy.moving_rate, replicas=session.job.replicas),
            strategy.momentum,
            strategy.nesterov,
            strategy.turns,
            strategy.clip_norm,
        )
        return Elastic(*first, settings, *last, scratch)
    if isinstance(strategy, job.Diloco):
        return Diloco(*first, DilocoSettings.of(strategy, rate), *last, scratch)
    cadence = FetchPushSchedule(strategy.batch, strategy.n_fetch, strategy.n_push, strategy.literal)
    local = DownpourSettings(cadence, rate, strategy.local_rate, strategy.overlap, strategy.clip_norm)
    return Downpour(*first, local, *last, rows, fetcher)


def table_rows(session: Session) -> TableRows | None:
    """Rows of tables that the session's model reads; None where the job has no tables."""
    if not session.job.tables:
        return None
    assert isinstance(session.model, Network), "of the layers that read the tables"
    rows = TableRows(session.job, session.model, session.parameters, session.parameters.placement.dense)
    session.caches = rows.caches
    return rows


def synchronous(
    session: Session,
    model: Model,
    strategy: job.SyncSgd | job.Elastic,
    train: Samples,
    phases: PhaseTimer,
    rendezvous: Rendezvous,
    acknowledged: Callable[[PushStats], None],
) -> GroupTrainer:
    """Create the trainer of a worker that exchanges with the others of its group."""
    part, backend = session.part, session.backend
    method: AllreduceSgd | AllreduceEasgd
    allocate = session.parameters.array
    if isinstance(strategy, job.SyncSgd):
        method = AllreduceSgd(model, part, backend, strategy, allocate)
    else:
        moving_rate = functools.partial(strategy.moving_rate, replicas=session.job.replicas)
        method = AllreduceEasgd(model, part, backend, strategy, moving_rate, allocate)
    return GroupTrainer(
        method,
        rendezvous,
        _shards(session),
        BatchLoader(train, strategy.batch, session.job.seed, backend),
        FetchPushSchedule(strategy.batch),
        _rate(session, train),
        phases,
        acknowledged,
    )


def _shards(session: Session) -> ShardAccess:
    """Shard operations for workers of a group, which need only two."""
    segments = len(session.parameters.placement.spans)
    # Sequence numbers of writes: leases count in steps, and the shards do not receive their numbers.
    numbers = itertools.count(session.next_sequence())

    def read(out: np.ndarray) -> None:
        session.parameters.pull(out, np.full(segments, -1, np.int64))

    def write(values: np.ndarray) -> None:
        check_finite(values, session.part, "parameters")
        session.parameters.push(
            values, np.zeros(segments, np.int64), Push(session.pusher, next(numbers), np.float32(1))
        )

    return ShardAccess(read, write)


def sandblaster(
    session: Session,
    model: Model,
    strategy: job.Sandblaster,
    train: Samples,
    phases: PhaseTimer,
    reporter: BundleReporter,
) -> BundleWorker:
    """Create the worker of a batch method, which computes bundles of portions."""
    portion = min(strategy.portion, len(train))
    gather = [BatchLoader(train, portion, session.job.seed, session.backend) for _ in range(2)]
    return BundleWorker(
        model,
        session.part,
        session.backend,
        session.parameters,
        session.pusher,
        (gather[0], gather[1]),
        phases,
        reporter,
        session.ranks,
        column_tensor(model, session.part, train, strategy.bundle * portion) if session.ranks.size == 1 else None,
    )


def _rate(session: Session, train: Samples) -> Callable[[int], float]:
    """Learning rate by samples leased before."""
    return functools.partial(learning_rate, session.job, total=total_samples(session.job.limits, len(train)))
