"""The process that gives the run's events to trackers of experiments, beside the coordinator."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dbelief.job import Job
from dbelief.launch.child_process import PROGRAM, spawn
from dbelief.rundir.summary import has_ended

log = logging.getLogger(__name__)

LOG = "track.log"
END_S = 60.0
"""Seconds that the process has after the end of the run, for pictures and the model."""


@contextmanager
def tracking(job: Job, folder: Path) -> Iterator[None]:
    """Have the run of a folder tracked within the block, as the job file says; its output goes to `track.log`.

    After the block the process ends by itself where the run is over, and is ended where another coordinator goes on, or
    where this process ends for any reason. A failure of the process is logged, and does not affect the run.
    """
    if not job.track:
        yield
        return
    process = spawn([*PROGRAM, "track", str(folder)], folder / LOG)
    log.info(f"tracked by {', '.join(job.track)}: see {folder / LOG}")
    over = False
    try:
        yield
        over = has_ended(folder)
    finally:
        _end(process, END_S if over else 0.0, folder / LOG)


def _end(process: subprocess.Popen[bytes], patience_s: float, output: Path) -> None:
    try:
        if patience_s:
            process.wait(patience_s)
    except subprocess.TimeoutExpired:
        log.warning(f"trackers have not got everything within {patience_s:g} s: see {output}")
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    elif process.returncode:
        log.warning(f"tracking ended with exit code {process.returncode}: see {output}")
