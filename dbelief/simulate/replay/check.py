"""Which jobs can be trained with delays, and by which options of a command."""

from __future__ import annotations

import math

from dbelief.errors import JobError, UserError
from dbelief.job import Diloco, Downpour, Job, NoData, ScriptModel, Wire
from dbelief.url import Url

from .delays import DelayTrace
from .replayed_job import kind_of

MOST_REPLICAS = 1024
"""As many as a job may have."""


def check_delays(job: Job, trace: DelayTrace, file: str) -> None:
    """Check that a job can be trained with these delays.

    Raises
    ------
    JobError
        It cannot; names the field, and why.
    """
    if (why := _misfit(job)) is not None:
        raise JobError(f"job {job.name}: delays: {why}")
    if kind_of(job) != trace.strategy:
        raise JobError(
            f"job {job.name}: delays: {file} is of strategy {trace.strategy}, and that of {job.strategy.name} is "
            f"{kind_of(job)}"
        )
    if trace.replicas > MOST_REPLICAS:
        raise JobError(
            f"job {job.name}: delays: {file} has {trace.replicas:,} replicas, and at most {MOST_REPLICAS:,} are "
            "replayed"
        )


def _misfit(job: Job) -> str | None:
    """What of a job one process cannot train with delays; None: nothing."""
    strategy = job.strategy
    if isinstance(strategy, Diloco):
        for name, value in (("delay", 0), ("fragments", 1)):
            if getattr(strategy, name) != value:
                return f"strategy.{name} must be {value}: a push takes effect as a whole, where the file has it"
    if kind_of(job) is None:
        advice = " with staleness 0" if isinstance(strategy, Downpour) else ""
        return (
            f"strategy.name must not be {strategy.name}{advice}: there are delays for downpour, async-sgd, async-msgd, "
            "async-easgd, async-measgd and diloco"
        )
    if isinstance(strategy, Downpour):
        most, least = max(strategy.n_fetch, strategy.n_push), min(strategy.n_fetch, strategy.n_push)
        if most % least:
            return (
                f"strategy.n_fetch, {strategy.n_fetch}, must divide n_push, {strategy.n_push}, or the other way round"
            )
        if strategy.literal and strategy.n_push > 1:
            return "strategy.literal must be false"
    refused = {
        "model.source must not be script: its steps are its own": isinstance(job.model, ScriptModel),
        "data.source must not be none: there is nothing to train on": isinstance(job.data, NoData),
        "tables must be left out: their rows are read from shards": bool(job.tables),
        "grid must be [1]: a replica has one rank": math.prod(job.grid) != 1,
        "wire must be left out: nothing travels": job.wire != Wire(),
        "scale must be null: the file has the replicas": job.scale is not None,
        "record must be false: the file has the order": job.record,
        "output must be a folder": isinstance(job.output, Url),
        "track must be []: `dbelief track RUN` gives the run to trackers": bool(job.track),
    }
    return next((why for why, holds in refused.items() if holds), None)


def refuse_options(job: Job, given: dict[str, bool]) -> None:
    """Refuse options of a command that a training with delays does not have.

    Parameters
    ----------
    given
        By option, whether it was given.

    Raises
    ------
    UserError
        One was given, and the job has delays; names it.
    """
    if job.delays is None:
        return
    for option, was in given.items():
        if was:
            raise UserError(f"{option}: a job with delays is one process on this machine, which begins anew")
