"""Limits of the system within which a job cannot start: below them gRPC ends a process without a line of ours."""

from __future__ import annotations

import os
import resource

from dbelief.errors import UserError

THREADS = 8
"""Threads that each process of a job has at least; a coordinator has 16."""


def check_threads(processes: int) -> None:
    """Check that this user may have the threads of so many processes.

    Raises
    ------
    UserError
        It may not.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY and most < THREADS * processes:  # none for root
        raise UserError(
            f"this user may have {most} threads and processes (ulimit -u), and the job's {processes} processes need "
            f"{THREADS * processes} or more: raise the limit, or lower replicas and shards"
        )
