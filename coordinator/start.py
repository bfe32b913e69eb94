"""From a job file to a machine: the run folder, the sizes of the data, and where a resumed job goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

from dbelief.data import load
from dbelief.errors import Mistake
from dbelief.job import Job

from .job import JobMachine
from .sets import newest_set
from .states import Shape


def prepare_folder(job: Job, resume: bool) -> Path:
    """Make the run folder and write the job file into it; an earlier run of that name is moved aside.

    Raises
    ------
    Mistake
        Where there is nothing to resume, or the folder cannot be made.
    """
    folder = Path(job.output).absolute() / job.name
    try:
        if resume and not folder.is_dir():
            raise Mistake(f"{folder}: no run to resume")
        if folder.exists() and not resume:
            _move_aside(folder)
        (folder / "snapshots").mkdir(parents=True, exist_ok=True)
        (folder / "job.yaml").write_text(job.to_yaml())
    except OSError as error:
        raise Mistake(f"run folder {folder}: {error.strerror or error}") from error
    return folder


def _move_aside(folder: Path) -> None:
    """Keep the last earlier run under NAME.previous; what was there before goes."""
    previous = folder.with_name(folder.name + ".previous")
    if previous.exists():
        shutil.rmtree(previous)
    folder.rename(previous)


def make_machine(job: Job, folder: Path, resume: bool) -> JobMachine:
    """The job's machine, with the sizes of its data."""
    data = load(job.data, job.folder)
    shape = Shape(*(len(split) if split is not None else 0 for split in (data.train, data.validation, data.test)))
    if not resume:
        return JobMachine(job, shape)
    set_id, state = newest_set(folder / "snapshots", job.name)
    return JobMachine(job, shape, (set_id, state), state["shard_epoch"] + 1)
