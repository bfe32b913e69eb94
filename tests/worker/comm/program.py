"""A rank of `mpiexec -n 4 python -m tests.worker.comm.program CASE FOLDER`; writes how it ended into FOLDER/RANK."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.worker.comm.group import BODIES
from worker.comm import Comm
from worker.comm.mpi import MpiEngine


def all_bodies(comm: Comm) -> None:
    """What holds for any engine."""
    for body in BODIES:
        body(comm)


def raises(comm: Comm) -> None:
    """Rank 2 fails, all others wait for each other."""
    if comm.rank == 2:
        raise ZeroDivisionError("a rate of 0")
    comm.recv(np.empty(4), (comm.rank + 1) % 2, tag=9)


def sleeps(comm: Comm) -> None:
    """Rank 1 never answers."""
    if comm.rank == 1:
        time.sleep(100)
    comm.recv(np.empty(4), 1, tag=9)


def misfits(comm: Comm) -> None:
    """Rank 1 is sent less than it takes."""
    if comm.rank == 0:
        comm.send(np.ones(3), 1)
    if comm.rank == 1:
        comm.recv(np.ones(4), 0)
    comm.barrier()


CASES: dict[str, tuple[Callable[[Comm], None], float]] = {
    "all_bodies": (all_bodies, 60.0),
    "raises": (raises, 60.0),
    "sleeps": (sleeps, 1.0),
    "misfits": (misfits, 60.0),
}


def main() -> None:
    body, deadline_s = CASES[sys.argv[1]]
    comm = Comm(MpiEngine(), deadline_s)
    outcome = Path(sys.argv[2]) / str(comm.rank)
    try:
        with comm:
            try:
                body(comm)
            except Exception as error:
                outcome.write_text(f"{type(error).__name__}: {error}")
                raise
    except Exception:
        sys.exit(3)
    outcome.write_text("done")


main()
