"""Components of a job's training, as its file requests them: leases and their size, policy, intervals, thresholds."""

from __future__ import annotations

from dbelief.job import Asynchronous, Diloco, Downpour, Elastic, Job, Sandblaster, SyncSgd
from dbelief.job.lease_size import lease_size
from dbelief.job.metrics import higher_is_better, name_of

from ..core.divergence import DivergenceDetector
from ..core.progress import TrainingProgress
from ..core.states import DatasetSizes
from ..core.warm_start import WarmStart
from .batch_method import Sandblaster as BatchMethod
from .bounded_staleness import BoundedStalenessPolicy
from .free_running import FreeRunningPolicy
from .groups import GroupPolicy
from .lease_pacing import LeasePacing
from .leases import Leases
from .sync_policy import SyncPolicy
from .synchronous import SynchronousPolicy


def leases(job: Job, shape: DatasetSizes, total: int | None) -> Leases:
    """The leases of data; no lease can be granted where a batch method assigns portions."""
    if isinstance(job.strategy, Sandblaster):
        return Leases(shape.train, 0, 1, 1)
    unbounded = 2**62 if shape.train else 0
    size, batch = lease_size(job, shape.train), _leasing(job).clock_samples
    late = isinstance(job.strategy, Diloco) and job.strategy.quorum is not None
    return Leases(shape.train, total or unbounded, size, batch, shape.block_ends, max(1, job.replicas), late)


def _leasing(job: Job) -> Downpour | Asynchronous | Elastic | SyncSgd | Diloco:
    """The job's strategy, which must be one that leases data."""
    assert not isinstance(job.strategy, Sandblaster)
    return job.strategy


def sync_policy(job: Job, shape: DatasetSizes, leases: Leases, warm_start: WarmStart) -> SyncPolicy:
    """The policy that assigns the training work."""
    strategy = job.strategy
    if isinstance(strategy, Sandblaster):
        return BatchMethod(strategy, shape.train)
    if strategy.grouped:
        return GroupPolicy(leases)
    if strategy.staleness is None:
        return FreeRunningPolicy(leases, warm_start, None if strategy.lease else LeasePacing(leases.size))
    if strategy.staleness or (isinstance(strategy, Diloco) and strategy.quorum is not None):
        return BoundedStalenessPolicy(leases, warm_start)
    return SynchronousPolicy(leases, strategy.turns)


def progress(job: Job, shape: DatasetSizes, total: int | None) -> TrainingProgress:
    """The running figures, with the job's thresholds."""
    every = None
    if shape.validation:
        # A batch method changes the parameters once in a pass or two.
        usual = 5 * shape.train if isinstance(job.strategy, Sandblaster) else max(1, shape.train // 2)
        every = job.evaluate.every or usual
    limits = job.limits
    return TrainingProgress(
        warm_start=_warm_start(job, shape, total),
        evaluate_every=every,
        keep_best=bool(shape.validation) and job.keeps_best,
        divergence=DivergenceDetector(job.divergence.factor, job.divergence.seconds),
        target_accuracy=limits.validation_accuracy,
        target_loss=limits.validation_loss,
        targets=limits.validation_metrics,
        higher={name_of(metric): higher_is_better(metric) for metric in job.evaluate.metrics},
        best_by=job.evaluate.best_by,
        patience=limits.patience,
    )


def _warm_start(job: Job, shape: DatasetSizes, total: int | None) -> WarmStart:
    """The warm start with its conditions; without any where all replicas start at once."""
    warm = job.strategy.warm_start if isinstance(job.strategy, Downpour) else None
    if warm is None or job.replicas <= 1 or job.strategy.staleness == 0:
        return WarmStart()
    if warm.samples is None and warm.loss is None:
        return WarmStart(round(warm.share * (total or shape.train)))
    return WarmStart(warm.samples, warm.loss)
