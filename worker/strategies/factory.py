"""From a job's strategy to what computes on a replica by it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np

from dbelief import job
from dbelief.core.lease import Cadence, Lease
from dbelief.core.push import Push, Pushed
from dbelief.data import Split
from dbelief.nn import Model
from dbelief.optim.finite import check_finite
from dbelief.training.schedule import rate_at, total_samples
from dbelief.training.session import Session

from ..pipeline.batches import Batches
from ..pipeline.buffers import Done, Fetched, Outgoing
from ..pipeline.fetch_thread import Fetcher
from ..pipeline.push_thread import Sender
from ..rendezvous import Meeting
from .downpour import Downpour, Phases
from .downpour import Settings as DownpourSettings
from .elastic import Elastic
from .elastic import Settings as ElasticSettings
from .group import Shards, Together
from .group_methods import Averaging, SummedGradients
from .sandblaster import Bundles, Tells

SLOTS = 2
"""Gradient buffers of Downpour: one being computed, one on its way."""


def downpour(
    session: Session,
    model: Model,
    strategy: job.Downpour | job.Asynchronous,
    train: Split,
    phases: Phases,
    push: Callable[[Outgoing], Pushed],
    acknowledged: Callable[[Outgoing, Pushed], None],
    noted: Callable[[Lease, int, np.ndarray], None] | None,
) -> Downpour:
    """Downpour SGD, with its fetch and push threads."""
    part, backend = session.part, session.backend
    segments, allocate = len(session.parameters.placement.spans), session.parameters.array
    fetched, spare = (Fetched.make(part, segments, backend, allocate) for _ in range(2))
    return Downpour(
        model,
        part,
        backend,
        Fetcher(session.parameters, (fetched, spare)),
        Sender(push, [Outgoing.make(part, segments, backend, allocate) for _ in range(SLOTS)], acknowledged),
        Batches(train, strategy.batch, session.job.seed, backend),
        DownpourSettings(
            Cadence(strategy.batch, strategy.n_fetch, strategy.n_push, strategy.literal),
            _rate(session, train),
            strategy.local_rate,
            strategy.overlap,
            strategy.clip_norm,
        ),
        phases,
        noted,
        session.ranks.total,
    )


def elastic(
    session: Session,
    model: Model,
    strategy: job.Elastic,
    train: Split,
    phases: Phases,
    acknowledged: Callable[[Done, Pushed], None],
    noted: Callable[[Lease, int, np.ndarray], None] | None,
) -> Elastic:
    """Elastic averaging, with its thread for exchanges."""
    part = session.part
    return Elastic(
        model,
        part,
        session.backend,
        session.parameters,
        len(session.parameters.placement.spans),
        session.pusher,
        Batches(train, strategy.batch, session.job.seed, session.backend),
        ElasticSettings(
            Cadence(strategy.batch, strategy.n_fetch, strategy.n_push),
            _rate(session, train),
            functools.partial(strategy.moving_rate, replicas=session.job.replicas),
            strategy.momentum,
            strategy.nesterov,
            strategy.turns,
            strategy.clip_norm,
        ),
        phases,
        lambda weights: check_finite(weights, part, "weights"),
        acknowledged,
        noted,
        session.ranks.total,
    )


def together(
    session: Session,
    model: Model,
    strategy: job.SyncSgd | job.Elastic,
    train: Split,
    phases: Phases,
    meeting: Meeting,
    acknowledged: Callable[[Done], None],
) -> Together:
    """A worker that exchanges with the others of its group."""
    part, backend = session.part, session.backend
    method: SummedGradients | Averaging
    allocate = session.parameters.array
    if isinstance(strategy, job.SyncSgd):
        method = SummedGradients(
            model, part, backend, strategy, lambda gradient: check_finite(gradient, part), allocate
        )
    else:
        moving_rate = functools.partial(strategy.moving_rate, replicas=session.job.replicas)
        checked = functools.partial(check_finite, layout=part, what="weights")
        method = Averaging(model, part, backend, strategy, moving_rate, checked, allocate)
    return Together(
        method,
        meeting,
        _shards(session),
        Batches(train, strategy.batch, session.job.seed, backend),
        Cadence(strategy.batch),
        _rate(session, train),
        phases,
        acknowledged,
    )


def _shards(session: Session) -> Shards:
    """The shards, of which workers with a group need little."""
    segments = len(session.parameters.placement.spans)
    # Numbers of what is written: leases count in steps, and are not told to the shards.
    numbers = itertools.count(session.next_sequence())

    def read(out: np.ndarray) -> None:
        session.parameters.pull(out, np.full(segments, -1, np.int64))

    def write(values: np.ndarray) -> None:
        check_finite(values, session.part, "parameters")
        session.parameters.push(
            values, np.zeros(segments, np.int64), Push(session.pusher, next(numbers), np.float32(1))
        )

    return Shards(read, write)


def bundles(
    session: Session,
    model: Model,
    strategy: job.Sandblaster,
    train: Split,
    phases: Phases,
    tells: Tells,
) -> Bundles:
    """A batch method's portions."""
    portion = min(strategy.portion, len(train))
    gather = [Batches(train, portion, session.job.seed, session.backend) for _ in range(2)]
    return Bundles(
        model,
        session.part,
        session.backend,
        session.parameters,
        session.pusher,
        (gather[0], gather[1]),
        phases,
        tells,
        session.ranks,
    )


def _rate(session: Session, train: Split) -> Callable[[int], float]:
    """Learning rate by samples leased before."""
    return functools.partial(rate_at, session.job, total=total_samples(session.job.limits, len(train)))
