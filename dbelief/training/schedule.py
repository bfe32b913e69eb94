"""The learning rate as a function of samples seen.

Samples, not pushes: the work of a push changes with batch, n_push and the number of replicas. Every function is pure,
and powers use `optim/powers.py`, so coordinator, replica and replay agree to the last bit on any machine.
"""

import math

from dbelief.job import ConstantSchedule, CosineSchedule, Job, Limits, PolySchedule, StepSchedule
from dbelief.optim.cosine import half_cosine
from dbelief.optim.rules import powers


def step(rate: float, samples: int, *, every: int, factor: float) -> float:
    """Return rate * factor^(samples // every); infinity where a factor above 1 overflows."""
    return rate * powers.power(factor, samples // every)


def poly(rate: float, samples: int, *, power: float, total: int) -> float:
    """Return rate * (1 - samples / total)^power, and 0 from `total` samples on.

    Source: FireCaffe (Iandola et al. 2016), section 4, where power is 0.5 for GoogLeNet.
    """
    return rate * powers.power(1.0 - min(samples, total) / total, power)


def cosine(rate: float, samples: int, *, end: float, total: int) -> float:
    """Return rate * (end + (1 - end) * (1 + cos(pi * samples / total)) / 2), and rate * end from `total` samples on.

    Source: Loshchilov and Hutter 2017 (arXiv:1608.03983), equation 5, without restarts.
    """
    return rate * (end + (1.0 - end) * half_cosine(min(samples, total) / total))


def warm_up_factor(samples: int, *, over: int, start_factor: float) -> float:
    """Return the warm-up factor: linear from start_factor at 0 samples to 1 at `over` samples, then 1.

    Source: Goyal et al. 2017 (arXiv:1706.02677), section 2.2, "gradual warmup".
    """
    if samples >= over:
        return 1.0
    return start_factor + (1.0 - start_factor) * (samples / over)


def total_samples(limits: Limits, training_samples: int | None = None) -> int | None:
    """Number of samples that a job trains on if nothing stops it early.

    Parameters
    ----------
    limits : Limits
    training_samples : int, optional
        Samples of one epoch; None where there is no data or it is not known.

    Returns
    -------
    int or None
        The lesser of `limits.samples` and `limits.epochs` epochs, rounded up; None where neither is known.
    """
    totals = [] if limits.samples is None else [limits.samples]
    if limits.epochs is not None and training_samples is not None:
        totals.append(math.ceil(limits.epochs * training_samples))
    return min(totals, default=None)


def learning_rate(job: Job, samples: int, total: int | None = None) -> float:
    """Learning rate for a push: the rule's, by its schedule, times the factors of scale and warm-up.

    Parameters
    ----------
    job : Job
    samples : int
        Samples seen (leased) before it, over all replicas; 0 at the start.
    total : int, optional
        Samples of the complete job, as `total_samples` returns them; a poly or cosine schedule without its own total
        needs this where the job is limited by epochs.

    Raises
    ------
    ValueError
        `samples` is negative, or a poly or cosine schedule has no total.
    """
    if samples < 0:
        raise ValueError(f"samples is {samples}, must be 0 or more")
    schedule = job.schedule
    rate = job.strategy.rule.rate
    if schedule.scale is not None:
        rate *= schedule.scale.factor(job.samples_in_a_mean)
    if schedule.warm_up is not None:
        rate *= warm_up_factor(samples, over=schedule.warm_up.samples, start_factor=schedule.warm_up.start_factor)
    match schedule:
        case ConstantSchedule():
            return rate
        case StepSchedule(every=every, factor=factor):
            return step(rate, samples, every=every, factor=factor)
        case PolySchedule(power=power):
            return poly(rate, samples, power=power, total=_end(job, schedule, total))
        case CosineSchedule(end=end):
            return cosine(rate, samples, end=end, total=_end(job, schedule, total))


def _end(job: Job, schedule: PolySchedule | CosineSchedule, total: int | None) -> int:
    """Samples at which a schedule has fallen: its own, else those of the complete job."""
    end = schedule.total or total or (job.limits.samples if job.limits.epochs is None else None)
    if end is None:
        raise ValueError(f"a {schedule.kind} schedule without a total needs the total number of samples")
    return end
