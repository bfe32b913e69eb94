"""Wait between jobs: a process that outlasts its job waits for the next one at the same address.

Kubernetes restarts every container that exits, whatever its exit status. There the end of a job must not end a process.
"""

from __future__ import annotations

from contextlib import closing

from dbelief.errors import RuntimeFailure
from dbelief.process.runtime import Event
from dbelief.rpc.pb import coordination_pb2 as wire

from .coordinator_client import OVER, CoordinatorClient

_ASK_AGAIN_S = 1.0


def wait_for_job(address: str, interrupted: Event, another: bool = False) -> bool:
    """Wait, without a limit, until the coordinator at `host:port` runs a job that is not over.

    Parameters
    ----------
    another
        Whether a job that is closing does not count either: this process has received its end.

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
            except RuntimeFailure:  # no coordinator, or one without a job: it is a standby, or its job ended early
                pass
            with client.connecting():
                interrupted.wait(_ASK_AGAIN_S)
    return False
