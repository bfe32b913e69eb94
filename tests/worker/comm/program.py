"""A rank of `mpiexec -n 4 python -m tests.worker.comm.program CASE FOLDER`; writes how it ended into FOLDER/RANK."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.worker.comm.collectives import ways
from tests.worker.comm.group import BODIES
from worker.comm import Communicator
from worker.comm.mpi import MpiEngine


def all_bodies(comm: Communicator) -> None:
    """What holds for any engine."""
    for body in BODIES:
        body(comm)


def arrays(comm: Communicator) -> None:
    """Distributed arrays of all kinds, one after the other, on the same tag."""
    from tests.worker.partition.exchanges import check, drawn

    for seed in range(40):
        check(comm, drawn(seed, comm.size))


def partitioned(comm: Communicator) -> None:
    """Partitioned models; imported here, for half a second of each rank's start is theirs."""
    from tests.worker.partition import autoencoders, stacks
    from tests.worker.partition.networks import several

    for body in (several, autoencoders.some, stacks.some):
        body(comm)


def collectives(comm: Communicator) -> None:
    """Sums of all kinds."""
    for body in ways.BODIES:
        body(comm)


def raises(comm: Communicator) -> None:
    """Rank 2 fails once all others wait for each other."""
    if comm.rank == 2:
        for rank in (0, 1, 3):
            comm.recv(np.empty(1), rank)
        raise ZeroDivisionError("a rate of 0")
    pending = comm.irecv(np.empty(4), (comm.rank + 1) % 2, tag=9)
    comm.send(np.empty(1), 2)
    pending.wait()


def sleeps(comm: Communicator) -> None:
    """Rank 1 never answers."""
    if comm.rank == 1:
        time.sleep(100)
    comm.recv(np.empty(4), 1, tag=9)


def misfits(comm: Communicator, sent: int = 3) -> None:
    """Rank 1 is sent less than it takes."""
    if comm.rank == 0:
        comm.send(np.ones(sent), 1)
    if comm.rank == 1:
        comm.recv(np.ones(4), 0)
    comm.barrier()


def overflows(comm: Communicator) -> None:
    """Rank 1 is sent more than it takes."""
    misfits(comm, sent=5)


CASES: dict[str, tuple[Callable[[Communicator], None], float]] = {
    "all_bodies": (all_bodies, 60.0),
    "arrays": (arrays, 60.0),
    "partitioned": (partitioned, 60.0),
    "collectives": (collectives, 60.0),
    "raises": (raises, 60.0),
    "sleeps": (sleeps, 1.0),
    "misfits": (misfits, 60.0),
    "overflows": (overflows, 60.0),
}


def main() -> None:
    cases = [CASES[case] for case in sys.argv[1].split("+")]
    comm = Communicator(MpiEngine(), min(deadline_s for _, deadline_s in cases))
    outcome = Path(sys.argv[2]) / str(comm.rank)
    try:
        with comm:
            try:
                for body, _ in cases:
                    body(comm)
            except Exception as error:
                outcome.write_text(f"{type(error).__name__}: {error}")
                raise
    except Exception:
        sys.exit(3)
    outcome.write_text("done")


main()
