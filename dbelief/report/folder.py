"""The run folder `runs/NAME/`: made before a job begins, and never lost to the next run of that name."""

from __future__ import annotations

import shutil
from pathlib import Path

from dbelief.errors import Mistake
from dbelief.job import Job


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
        (folder / "job.yaml").write_text(job.anchored().to_yaml())
    except OSError as error:
        raise Mistake(f"run folder {folder}: {error.strerror or error}") from error
    return folder


def _move_aside(folder: Path) -> None:
    """Keep the last earlier run under NAME.previous; what was there before goes."""
    previous = folder.with_name(folder.name + ".previous")
    if previous.exists():
        shutil.rmtree(previous)
    folder.rename(previous)
