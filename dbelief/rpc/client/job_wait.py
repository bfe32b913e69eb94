"""Between jobs: a process that outlives its job waits for the next one at the same address.

Kubernetes starts again whatever exits, however well it ended. There a job's end must be no process' end.
"""

from __future__ import annotations

import threading
from contextlib import closing

from dbelief.errors import RuntimeFailure
from dbelief.rpc import coordination_pb2 as wire

from .coordinator_client import OVER, CoordinatorClient

_ASK_AGAIN_S = 1.0


def wait_for_job(address: str, interrupted: threading.Event, another: bool = False) -> bool:
    """Wait until the coordinator at `host:port` runs a job that is not over, however long that takes.

    Parameters
    ----------
    another
        One that closes does not count either: this process has been told of its end.

    Returns
    -------
    bool
        False where `interrupted` was set first.
    """
    late = (*OVER, wire.STATE_CLOSING) if another else OVER
    with closing(CoordinatorClient(address, patience_s=0.0)) as client:
        while not interrupted.is_set():
            try:
                if client.status().state not in late:
                    return True
            except (
                RuntimeFailure
            ):  # nobody is there, or one that knows no job: it stands by, or its job ended before its time
                pass
            interrupted.wait(_ASK_AGAIN_S)
    return False
