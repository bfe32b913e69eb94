"""Figures of the rounds that replicas make together: of DiLoCo, and of other strategies in lockstep (staleness 0)."""

from __future__ import annotations

from dbelief.job import Job
from dbelief.rundir.summary import RoundFigures

from ..job.machine import JobMachine


def has_rounds(job: Job) -> bool:
    """Whether replicas make rounds together, at whose end the shards apply their mean; those that take turns do not."""
    return job.strategy.staleness == 0 and not job.strategy.turns


def round_figures(machine: JobMachine) -> RoundFigures | None:
    """The figures as last reported, over the whole run; None where the job has no rounds."""
    if not has_rounds(machine.job):
        return None
    progress = machine.progress
    late = sum(progress.stale()[1:])
    moved, seconds = progress.bytes, progress.seconds
    return RoundFigures(
        rounds=progress.rounds,
        pushes_per_round=_share(progress.pushes, progress.rounds),
        late_pushes=late,
        late_age=_share(progress.staleness_sum, late),
        sent_per_sample=_share(moved["sent"], progress.samples),
        received_per_sample=_share(moved["received"], progress.samples),
        computing=_share(seconds.get("compute", 0.0), sum(seconds.values())),
    )


def _share(part: float, whole: float) -> float | None:
    """One number for each of another; None where there is none of these."""
    return part / whole if whole else None
