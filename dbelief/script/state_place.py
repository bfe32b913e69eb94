"""Where a replica's own state is kept: in the run's folder, or in one of its machine that the script names."""

from __future__ import annotations

from pathlib import Path

from dbelief.errors import UserError
from dbelief.job import Job
from dbelief.process.atomic_file import sweep, why_unwritable
from dbelief.url import Url

FOLDER = "replicas"
"""Folder of a run folder with the states of replicas."""


def state_file(named: str | Path | None, job: Job, run_folder: str, replica: int) -> Path:
    """The file of one replica, in a folder that exists and can be written.

    Parameters
    ----------
    named
        A folder of this machine, in which the job gets one of its own; None: the run's folder.
    run_folder
        The run's folder as the coordinator names it.

    Raises
    ------
    UserError
        The run's folder is not on this machine, or nothing can be written into the folder.
    """
    if named is not None:
        folder = Path(named).expanduser().absolute() / job.name
    elif isinstance(job.output, Url):
        raise UserError(f"the run is at {job.output}, which workers do not write to: {_NAME_ONE}")
    elif not Path(run_folder).is_dir():
        raise UserError(f"the run's folder {run_folder} is not on this machine: {_NAME_ONE}")
    else:
        folder = Path(run_folder) / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror or error}") from error
    if why := why_unwritable(folder):
        raise UserError(f"no state can be kept: {why}")
    sweep(folder)
    return folder / f"replica-{replica}.safetensors"


_NAME_ONE = "name a folder of this machine that outlasts the script, sync.state(..., folder=FOLDER)"
