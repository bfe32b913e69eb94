"""`dbelief slurm`: runs one job on the nodes of a batch job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dbelief.checkpoint.snapshot_set import complete_sets
from dbelief.errors import UserError
from dbelief.job import Job, load_job
from dbelief.launch.train import run_job
from dbelief.process.console import announce

from .allocation import Allocation
from .site import SlurmSite


def run_batch(job_file: Path, overrides: Mapping[str, str], workers: int | None, resume: bool) -> int:
    """Run a job on the nodes that Slurm has given; the exit code is the job's.

    A requeued job goes on from its newest snapshot set, where there is one.

    Parameters
    ----------
    workers
        How many; None: a task for each, after coordinator and shards.

    Raises
    ------
    Mistake
        The job file is wrong, or there are too few tasks.
    Failure
        What ended the job.
    """
    allocation = Allocation.of(os.environ)
    job = load_job(job_file, overrides)
    replicas = workers or workers_for(job, sum(allocation.tasks.values()))
    sets = {**overrides, "replicas": str(replicas), "pin_cores": "false"}  # which cores: Slurm says
    if allocation.restarts and not resume:
        resume = bool(complete_sets(Path(job.output).absolute() / job.name / "snapshots"))
        announce(
            f"requeued: {'going on from the newest snapshot set' if resume else 'no snapshot set, beginning anew'}"
        )
    site = SlurmSite(allocation, Path(f"dbelief-{allocation.job}").absolute(), job.deadlines.beat_s)
    return run_job(job_file, sets, resume, site=site)


def workers_for(job: Job, tasks: int) -> int:
    """Workers of a job on so many tasks.

    Raises
    ------
    Mistake
        No task is left for any.
    """
    shards = job.shards * job.replication
    if tasks <= 1 + shards:
        raise UserError(
            f"{tasks} tasks are too few: 1 coordinator, {shards} shards, and workers; more (--ntasks), or let members "
            "share CPUs: DBELIEF_WORKERS=1"
        )
    return tasks - 1 - shards
