"""The run folder `runs/NAME/`: made before a job begins, and kept when another run of that name starts."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dbelief.errors import UserError
from dbelief.job import Job, StacksModel, place
from dbelief.process.atomic_file import write_whole
from dbelief.rundir.claim import CLAIM, TRIES, Claim, RunInProgress, make_folder, usable
from dbelief.url import Url

log = logging.getLogger(__name__)

LAST_PASS = "last_pass.json"
"""File of a run folder with the figures of its last complete pass, and its attempts."""
REDUCTION = "reduction.json"
"""File of a run folder with the bytes that each worker of the last group received from each other worker."""
ADDRESS = "address"
"""File of a run folder with the coordinator's address; it exists while the run is active."""
CREDENTIALS = "credentials"
"""Folder of a run folder with credentials of all roles, where the run's launcher has made some; until its end."""


def claim_new(job: Job, holder: str) -> Claim:
    """Make the run folder, and claim it; an earlier run of that name is renamed to a free name, which is logged.

    Raises
    ------
    RunInProgress
        A run is active there.
    UserError
        The job starts from a folder that would be renamed, or the folder cannot be made.
    """
    folder = folder_of(job)
    check_start(job)
    with usable(folder):
        for _ in range(TRIES):
            try:
                make_folder(folder)
                claim = Claim.take(folder, holder)
            except FileNotFoundError:  # another process, which has this name now, has moved it aside
                continue
            if os.listdir(folder) == [CLAIM]:
                (folder / "snapshots").mkdir()
                return claim
            try:
                log.info(f"the earlier run of this name is kept: {folder} is now {_move_aside(folder)}")
            finally:
                claim.release()
    raise RunInProgress(folder)


def claim_earlier(folder: Path, holder: str) -> Claim:
    """Claim the folder of an earlier run, which is resumed there.

    Raises
    ------
    RunInProgress
        A run is active there.
    UserError
        There is nothing to resume, or the folder cannot be written.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no run to resume")
    with usable(folder):
        claim = Claim.take(folder, holder)
        (folder / "snapshots").mkdir(exist_ok=True)
        return claim


def check_start(job: Job) -> None:
    """Check that the files that a new run starts from are not renamed.

    Raises
    ------
    UserError
        They are in the run folder itself, which is renamed.
    """
    taken = [("start_from", job.start_from)] if job.start_from is not None else []
    if isinstance(job.model, StacksModel):
        taken += [("model.trained", text) for text in job.model.trained]
    folder = folder_of(job)
    for field, text in taken:
        path = place(text, job.folder)
        if isinstance(path, Url):
            continue  # of another place
        if folder.resolve() in {path.resolve(), path.resolve().parent}:  # a run, or a file in one
            raise UserError(
                f"{field}: {path} is moved aside where a new run named {job.name} begins; give this run another name, "
                f"or continue it with --resume"
            )


def folder_of(job: Job) -> Path:
    """The run folder of a job whose output is a folder."""
    return Path(job.output).absolute() / job.name


@contextmanager
def found_at(folder: Path, address: str, job: Job) -> Iterator[None]:
    """Write the job file into the run folder and, within the `with` block, the coordinator's address."""
    # The job file too, now that the run is certain to start: until then, it is that of an earlier run.
    write_whole(folder / "job.yaml", job.anchored().to_yaml().encode())
    write_whole(folder / ADDRESS, address.encode())
    try:
        yield
    finally:
        with suppress(OSError):
            if (folder / ADDRESS).read_text() == address:  # else the folder was renamed, and this is the next run's
                (folder / ADDRESS).unlink()


def _move_aside(folder: Path) -> Path:
    """Rename an earlier run's folder with the next free number, NAME.1 for the first; returns the new path."""
    taken = (path.name.removeprefix(f"{folder.name}.") for path in folder.parent.glob(f"{glob.escape(folder.name)}.*"))
    number = 1 + max((int(text) for text in taken if text.isdecimal()), default=0)
    return folder.rename(folder.with_name(f"{folder.name}.{number}"))
