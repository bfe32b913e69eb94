"""What a person asks of a job that runs: to end in good order, to go on with more or fewer replicas or shards."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from dbelief.checkpoint.snapshot_set import sets_in
from dbelief.errors import RuntimeFailure, Unavailable, UserError
from dbelief.monitor.format import plural
from dbelief.monitor.status import ENDED, LOOK_S, JobLocation, get_status, to_dict
from dbelief.rpc import coordination_pb2 as wire
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rundir.summary import Summary, read_summary

ANSWER_S = 5.0
"""How long a coordinator may be away while it is asked."""


def stop_job(where: str, reason: str, deadline_s: float | None) -> str:
    """End a job in good order; what became of it, in one line.

    Parameters
    ----------
    where
        Of its coordinator, or its run folder.
    reason
        For people; the run's `reason` from now on.
    deadline_s
        How long its end is waited for; None: not at all.

    Raises
    ------
    Failure
        It has not ended by then, or ended otherwise than asked.
    """
    place = JobLocation.of(where)
    found = get_status(place)
    if isinstance(found, Summary):
        return f"job {found.job} has ended already: {found.reason}"
    assert place.address is not None
    with closing(CoordinatorClient(place.address, patience_s=ANSWER_S)) as client:
        client.call("Stop", wire.StopRequest(reason=reason))
        if deadline_s is None:
            return f"job {found['job']} was asked to end: {reason}"
        status = _until_ended(client, found, deadline_s)
    if status["state"] == "failed":
        raise RuntimeFailure(f"job {status['job']} failed: {status['reason']}; {_kept(status)}")
    return f"job {status['job']} ended: {status['reason']}; {_kept(status)}"


def _until_ended(client: CoordinatorClient, status: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    until_s, never = time.monotonic() + deadline_s, threading.Event()
    while status["state"] not in ENDED:
        if time.monotonic() > until_s:
            raise RuntimeFailure(
                f"job {status['job']} was asked to end, is {status['state']} after {deadline_s:g} s, and goes on ending"
            )
        never.wait(LOOK_S)
        try:
            status = to_dict(client.status())
        except Unavailable:  # it may have ended between two looks
            path = Path(status["run_folder"]) / "summary.json"
            if not path.exists():
                raise RuntimeFailure(f"{client.address}: the coordinator of job {status['job']} is gone") from None
            ended = read_summary(path).model_dump()
            return {**status, "state": ended.get("state"), "reason": ended["reason"]}
    return status


def _kept(status: dict[str, Any]) -> str:
    """What there is of the job now, as far as it can be seen from here."""
    folder = Path(status["run_folder"])
    if not folder.is_dir():
        what = "its model and last snapshot set are" if status["state"] == "done" else "what was kept is"
        return f"{what} in {folder} on the coordinator's machine"
    model = ["model.safetensors"] if (folder / "model.safetensors").exists() else []
    sets = sets_in(folder / "snapshots")
    kept = " and ".join([*model, *([plural(len(sets), "snapshot set")] if sets else [])])
    return f"kept: {kept} in {folder}" if kept else f"nothing was kept in {folder}: it had not begun to train"


def scale_job(where: str, replicas: int) -> str:
    """Let a job go on with so many replicas; what was asked for, in one line.

    Raises
    ------
    Mistake
        The run is over.
    Refused
        Nobody can bring it about; the reason names who can.
    """
    return _scale(where, wire.ScaleRequest(replicas=replicas), plural(replicas, "replica"))


def scale_shards(where: str, shards: int) -> str:
    """Let a job that trains go on with so many shards; what was asked for, and what is left to do, in one line.

    Raises
    ------
    Mistake
        The run is over.
    Refused
        It does not train, or cannot be held by so many.
    """
    return _scale(where, wire.ScaleRequest(shards=shards), plural(shards, "shard"))


def _scale(where: str, request: wire.ScaleRequest, wanted: str) -> str:
    place = JobLocation.of(where)
    found = get_status(place)
    if isinstance(found, Summary):
        raise UserError(f"job {found.job} has ended: {found.reason}")
    assert place.address is not None
    with closing(CoordinatorClient(place.address, patience_s=ANSWER_S)) as client:
        reply = client.call("Scale", request)
    return f"job {found['job']}: {wanted} wanted, {reply.before} there now" + (f"; {reply.todo}" if reply.todo else "")
