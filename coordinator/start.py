"""From a job file to a machine: the sizes of the data, and where a resumed job goes on."""

from __future__ import annotations

from pathlib import Path

from dbelief.data import load
from dbelief.job import Job

from .job import JobMachine
from .sets import newest_set
from .states import Shape


def make_machine(job: Job, folder: Path, resume: bool) -> JobMachine:
    """The job's machine, with the sizes of its data."""
    data = load(job.data, job.folder)
    shape = Shape(*(len(split) if split is not None else 0 for split in (data.train, data.validation, data.test)))
    if not resume:
        return JobMachine(job, shape)
    set_id, state = newest_set(folder / "snapshots", job.name)
    return JobMachine(job, shape, (set_id, state), state["shard_epoch"] + 1)
