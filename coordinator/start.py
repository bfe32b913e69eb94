"""From a job file to a machine: the sizes of the data, and where a resumed job goes on."""

from __future__ import annotations

from pathlib import Path

from dbelief.console import announce
from dbelief.data import load
from dbelief.job import Job
from dbelief.sets import newest_count, newest_set, set_aside

from .job import JobMachine
from .states import Shape


def make_machine(job: Job, folder: Path, resume: bool) -> JobMachine:
    """The job's machine, with the sizes of its data."""
    data = load(job.data, job.folder)
    shape = Shape(*(len(split) if split is not None else 0 for split in (data.train, data.validation, data.test)))
    if not resume:
        return JobMachine(job, shape)
    snapshots = folder / "snapshots"
    set_id, state, skipped = newest_set(snapshots, job.name, job.strategy.rule.name)
    for one in skipped:
        announce(f"snapshot set {one.set_id} is not whole and was set aside; going on from {set_id}: {one.reason}")
        set_aside(snapshots, one.set_id)
    state["sets"] = newest_count(snapshots)  # no new set may fall into the folder of one that was only begun
    return JobMachine(job, shape, (set_id, state), state["shard_epoch"] + 1)
