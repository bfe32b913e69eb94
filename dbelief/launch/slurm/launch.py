"""A job in a batch job of Slurm: its site, and how many workers it has."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from dbelief.errors import UserError
from dbelief.job import Job, load_job
from dbelief.rundir.place import place_of
from dbelief.url import Url

from .allocation import Allocation
from .site import SlurmSite

log = logging.getLogger(__name__)


def in_batch_job() -> bool:
    """Whether this process is in a batch job of Slurm, whose nodes are the job's."""
    return "SLURM_JOB_ID" in os.environ


def allocated(job_file: Path, overrides: Mapping[str, str], resume: bool) -> tuple[SlurmSite, dict[str, str], bool]:
    """The site of a job on the nodes that Slurm allocated, its fields, and whether it resumes.

    Workers are as many as `overrides` say, else one for each task that coordinator and shards leave. A requeued job
    resumes from its newest snapshot set, if there is one.

    Raises
    ------
    UserError
        The job file is invalid, there are too few tasks, or this is not the allocation's first node.
    RuntimeFailure
        Slurm's commands fail.
    """
    allocation = Allocation.of(os.environ)
    if os.environ.get("SLURMD_NODENAME") != allocation.first:
        raise UserError(
            f"this process is not on {allocation.first}, the first node of Slurm job {allocation.job}: its batch "
            "script runs this command, or env -u SLURM_JOB_ID dbelief ..., which submits another job"
        )
    job = load_job(job_file, overrides)
    left = {} if "replicas" in overrides else {"replicas": str(workers_for(job, sum(allocation.tasks.values())))}
    sets = {**overrides, **left, "pin_cores": "false"}  # Slurm assigns the cores
    if allocation.restarts and not resume:
        resume = bool(place_of(job).sets().complete())
        log.info(
            f"requeued: {'going on from the newest snapshot set' if resume else 'no snapshot set, beginning anew'}"
        )
    shared = Path(f"dbelief-{allocation.job}").absolute() if isinstance(job.output, Url) else None
    return SlurmSite(allocation, shared, job.deadlines.beat_s), sets, resume


def tasks_of(job: Job) -> int:
    """Tasks of a batch job that has one for the coordinator, each shard process and each worker."""
    return 1 + job.shards * job.replication + job.replicas


def workers_for(job: Job, tasks: int) -> int:
    """Number of workers of a job on `tasks` tasks.

    Raises
    ------
    UserError
        No task is left for a worker.
    """
    shards = job.shards * job.replication
    if tasks <= 1 + shards:
        raise UserError(
            f"{tasks} tasks are too few: 1 coordinator, {shards} shards, and workers; more (--ntasks), or let members "
            "share CPUs: --set replicas=1"
        )
    return tasks - 1 - shards
