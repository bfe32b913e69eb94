"""Monitor of the first node, run on another node: with --no-kill, Slurm keeps a job whose batch script has failed.

The guard uses only Slurm's own node state: once Slurm marks the node as down, no process of it can be assumed to run.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dbelief.errors import RuntimeFailure

from .allocation import Allocation, Run, run

log = logging.getLogger(__name__)

LOOK_S = 5.0
TRIES = 3

_STDOUT = re.compile(r"^\s*StdOut=(\S+)", re.MULTILINE)


def guard(job: str, node: str, wait: Callable[[float], None] = time.sleep, run: Run = run) -> None:
    """Wait until Slurm has removed `node` from the job as down, and requeue the job; if that fails, cancel it.

    Actions are written to the job's output file, since no process reads this one's output any more.
    """
    allocation = Allocation(job, {node: 1}, run=run)
    while _there(allocation, node):
        wait(LOOK_S)
    log = _logger(job, run)
    try:
        log(f"node {node} of the coordinator failed: job {job} is requeued, and continues from its newest snapshot set")
        _tried(["scontrol", "requeue", job], wait, run)
    except RuntimeFailure as error:
        log(f"{error}; job {job} is cancelled. Submit it again with --resume: it continues from there")
        _tried(["scancel", job], wait, run)


def _tried(command: list[str], wait: Callable[[float], None], run: Run) -> None:
    """Run a command, again where the controller does not answer at once."""
    for left in reversed(range(TRIES)):
        try:
            run(command)
            return
        except RuntimeFailure:
            if not left:
                raise
            wait(LOOK_S)


def _there(allocation: Allocation, node: str) -> bool:
    try:
        left = allocation.left()
    except RuntimeFailure as error:
        log.warning(f"{error}; asking again")
        return True
    return node in left or not left  # no node at all: the job is over, and this step ends shortly


def _logger(job: str, run: Run) -> Callable[[str], None]:
    found = None
    with suppress(RuntimeFailure):
        found = _STDOUT.search(run(["scontrol", "show", "job", job]))

    def write(line: str) -> None:
        log.warning(line)
        if found is not None:
            with suppress(OSError), Path(found[1]).open("a") as file:  # it may be on the node that failed
                file.write(f"{line}\n")

    return write
