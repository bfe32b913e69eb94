"""From a job's strategy to what computes on a replica by it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from dbelief import job
from dbelief.data import Split
from dbelief.nn import Model
from dbelief.pushes import Pushed
from dbelief.schedule import rate_at, total_samples
from dbelief.session import Session, check_finite
from dbelief.work import Cadence, Lease

from .batches import Batches
from .buffers import Done, Fetched, Outgoing
from .downpour import Downpour, Phases
from .downpour import Settings as DownpourSettings
from .elastic import Elastic
from .elastic import Settings as ElasticSettings
from .fetcher import Fetcher
from .sandblaster import Bundles, Tells
from .sender import Sender

SLOTS = 2
"""Gradient buffers of Downpour: one being computed, one on its way."""


def downpour(
    session: Session,
    model: Model,
    strategy: job.Downpour,
    train: Split,
    phases: Phases,
    push: Callable[[Outgoing], Pushed],
    acknowledged: Callable[[Outgoing, Pushed], None],
    noted: Callable[[Lease, int, np.ndarray], None] | None,
) -> Downpour:
    """Downpour SGD, with its fetch and push threads."""
    part, backend = session.part, session.backend
    segments = len(session.parameters.placement.spans)
    copies = Fetched.make(part, segments, backend), Fetched.make(part, segments, backend)
    return Downpour(
        model,
        part,
        backend,
        Fetcher(session.parameters, copies),
        Sender(push, [Outgoing.make(part, segments, backend) for _ in range(SLOTS)], acknowledged),
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
        ),
        phases,
        lambda weights: check_finite(weights, part, "weights"),
        acknowledged,
    )


def bundles(
    session: Session,
    model: Model,
    strategy: job.Sandblaster,
    train: Split,
    phases: Phases,
    tells: Tells,
    portion_wait_s: float,
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
        portion_wait_s,
        session.ranks,
    )


def _rate(session: Session, train: Split) -> Callable[[int], float]:
    """Learning rate by samples leased before."""
    return functools.partial(rate_at, session.job, total=total_samples(session.job.limits, len(train)))
