"""Size of a lease of data, from a job and its data."""

from __future__ import annotations

import math

from .job import Job
from .strategies.sandblaster import Sandblaster

LEASES_PER_S = 100.0
"""Requests of all replicas together, about, that larger leases leave."""
FEW = 32
"""Replicas up to which all leases have the job's size: so few never request too often, and runs stay repeatable."""


def lease_size(job: Job, train: int) -> int:
    """Samples in a full lease: whole cycles of fetches and pushes.

    By default a quarter of a replica's share of an epoch, so that fast replicas get more and little is lost with a
    failed one; between 4 and 64 mini-batches, so that requests cost little, or of DiLoCo 64 rounds: a push that travels
    is waited for at a lease's end.

    Parameters
    ----------
    job
        Its strategy must be one that leases data.
    train
        Number of training samples.
    """
    strategy = job.strategy
    assert not isinstance(strategy, Sandblaster)
    cycle = strategy.batch * math.lcm(strategy.n_fetch, strategy.n_push)
    share = train // (4 * max(1, job.replicas))
    wanted = strategy.lease or min(64 * strategy.clock_samples, max(4 * strategy.batch, share))
    return max(1, round(wanted / cycle)) * cycle
