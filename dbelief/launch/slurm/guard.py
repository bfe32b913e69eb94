"""What watches over the first node from another one: with --no-kill, Slurm keeps a job whose batch script is gone.

The guard asks Slurm alone whether the node is dead: only then no process of it can go on, as far as anybody knows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from dbelief.errors import RuntimeFailure
from dbelief.process.console import announce

from .allocation import Allocation, Run, run

LOOK_S = 5.0

_STDOUT = re.compile(r"^\s*StdOut=(\S+)", re.MULTILINE)


def guard(job: str, node: str, wait: Callable[[float], None] = time.sleep, run: Run = run) -> None:
    """Wait until Slurm has taken `node` out of the job for dead, and requeue the job; where that fails, cancel it.

    What is done is written to the job's output file, since nobody reads this process's output any more.
    """
    allocation = Allocation(job, {node: 1}, run=run)
    while _there(allocation, node):
        wait(LOOK_S)
    tell = _teller(job, run)
    try:
        tell(f"node {node} of the coordinator is dead: job {job} is requeued, and goes on from its newest snapshot set")
        run(["scontrol", "requeue", job])
    except RuntimeFailure as error:
        tell(f"{error}; job {job} is cancelled. Submit it again with DBELIEF_RESUME=1: it goes on from there")
        run(["scancel", job])


def _there(allocation: Allocation, node: str) -> bool:
    try:
        left = allocation.left()
    except RuntimeFailure as error:
        announce(f"{error}; asking again")
        return True
    return node in left or not left  # no node at all: the job is over, and so is this step in a moment


def _teller(job: str, run: Run) -> Callable[[str], None]:
    found = _STDOUT.search(run(["scontrol", "show", "job", job]))

    def tell(line: str) -> None:
        announce(line)
        if found is not None:
            with Path(found[1]).open("a") as file:
                file.write(f"{line}\n")

    return tell
