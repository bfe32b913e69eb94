"""`dbelief slurm`: run one job on the nodes of a batch job."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from dbelief.errors import UserError
from dbelief.job import Job, load_job
from dbelief.launch.train import run_job
from dbelief.rundir.place import place_of

from .allocation import Allocation
from .site import SlurmSite

log = logging.getLogger(__name__)


def run_batch(job_file: Path, overrides: Mapping[str, str], workers: int | None, resume: bool) -> int:
    """Run a job on the nodes that Slurm allocated; return the job's exit code.

    A requeued job resumes from its newest snapshot set, if there is one.

    Parameters
    ----------
    workers
        Number of workers; None: one for each task that coordinator and shards leave.

    Raises
    ------
    UserError
        The job file is invalid, or there are too few tasks.
    RuntimeFailure
        The job failed; the message names the reason.
    """
    allocation = Allocation.of(os.environ)
    job = load_job(job_file, overrides)
    replicas = workers or workers_for(job, sum(allocation.tasks.values()))
    sets = {**overrides, "replicas": str(replicas), "pin_cores": "false"}  # Slurm assigns the cores
    if allocation.restarts and not resume:
        resume = bool(place_of(job).sets().complete())
        log.info(
            f"requeued: {'going on from the newest snapshot set' if resume else 'no snapshot set, beginning anew'}"
        )
    site = SlurmSite(allocation, Path(f"dbelief-{allocation.job}").absolute(), job.deadlines.beat_s)
    return run_job(job_file, sets, resume, site=site)


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
            "share CPUs: DBELIEF_WORKERS=1"
        )
    return tasks - 1 - shards
