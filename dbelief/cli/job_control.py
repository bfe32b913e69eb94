"""User requests to a running job: stop cleanly, or continue with another number of replicas or shards."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from dbelief.checkpoint.set_storage import LocalSets
from dbelief.errors import RuntimeFailure, Unavailable, UserError
from dbelief.monitor.format import plural
from dbelief.monitor.states import ENDED
from dbelief.monitor.status import LOOK_S, JobLocation, get_status, to_dict
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.summary import Summary, has_ended, read_summary
from dbelief.url import is_url

ANSWER_S = 5.0
"""How long a request is retried while the coordinator is unavailable, in seconds."""


def stop_job(where: str, reason: str, deadline_s: float | None) -> str:
    """Stop a job cleanly; return the outcome in one line.

    Parameters
    ----------
    where
        Address of its coordinator, or its run folder.
    reason
        For users; it becomes the run's `reason`.
    deadline_s
        How long to wait for the job's end; None: do not wait.

    Raises
    ------
    RuntimeFailure
        The job has not ended by the deadline, or has failed.
    """
    place = JobLocation.of(where)
    found = get_status(place)
    if isinstance(found, Summary):
        return f"job {found.job} has ended already: {found.outcome}"
    assert place.address is not None
    with closing(CoordinatorClient(place.address, patience_s=ANSWER_S)) as client:
        client.call("Stop", wire.StopRequest(reason=reason))
        if deadline_s is None:
            return f"job {found['job']} is ending: {reason}"
        status = _until_ended(client, found, deadline_s)
    if status["state"] == "failed":
        raise RuntimeFailure(f"job {status['job']} failed: {status['reason']}; {_kept(status)}")
    return f"job {status['job']} ended: {status['reason']}; {_kept(status)}"


def _until_ended(client: CoordinatorClient, status: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    until_s, never = time.monotonic() + deadline_s, threading.Event()
    while status["state"] not in ENDED:
        if time.monotonic() > until_s:
            raise RuntimeFailure(
                f"job {status['job']} has not ended within {deadline_s:g} s: "
                f"it is {status['state']}, and continues to end"
            )
        never.wait(LOOK_S)
        try:
            status = to_dict(client.status())
        except Unavailable:  # it may have ended between two requests
            folder = Path(status["run_folder"])
            if not has_ended(folder):
                raise RuntimeFailure(f"{client.address}: the coordinator of job {status['job']} is gone") from None
            ended = read_summary(folder / "summary.json")
            return {**status, "state": ended.state, "reason": ended.outcome}
    return status


def _kept(status: dict[str, Any]) -> str:
    """Files that the job has kept, as far as this machine can see them."""
    folder = Path(status["run_folder"])
    if is_url(status["run_folder"]):
        return f"its files are in {status['run_folder']}"
    if not folder.is_dir():
        what = "its model and last snapshot set are" if status["state"] == "done" else "what was kept is"
        return f"{what} in {folder} on the coordinator's machine"
    model = ["model.safetensors"] if (folder / "model.safetensors").exists() else []
    sets = LocalSets(folder / "snapshots").started()
    kept = " and ".join([*model, *([plural(len(sets), "snapshot set")] if sets else [])])
    return f"kept: {kept} in {folder}" if kept else f"nothing was kept in {folder}: it had not begun to train"


def scale_job(where: str, what: Literal["replica", "shard"], count: int) -> str:
    """Change a training job's number of replicas or shards; return a line with the request and the remaining steps.

    Raises
    ------
    UserError
        The run is over.
    Rejected
        No launcher can start or end replicas, and the reason names a command that can; the job does not train; or its
        parameters cannot be held by this number of shards.
    """
    place = JobLocation.of(where)
    found = get_status(place)
    if isinstance(found, Summary):
        raise UserError(f"job {found.job} has ended: {found.outcome}")
    assert place.address is not None
    with closing(CoordinatorClient(place.address, patience_s=ANSWER_S)) as client:
        request = wire.ScaleRequest(replicas=count) if what == "replica" else wire.ScaleRequest(shards=count)
        reply = client.call("Scale", request)
    wanted = f"job {found['job']}: {plural(count, what)} wanted, {reply.before} there now"
    return wanted + (f"; {reply.todo}" if reply.todo else "")
