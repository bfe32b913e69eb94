"""Advice for a job, running or ended, and its application to a running one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from dbelief.advise.findings import Advice, Findings, findings_of
from dbelief.advise.measurements import Measurements, of_statuses, of_summary
from dbelief.advise.tables import advised
from dbelief.cli.job_control import ANSWER_S, scale_job
from dbelief.errors import RuntimeFailure, UserError
from dbelief.job import Job, load_job
from dbelief.job.load import parse_job
from dbelief.monitor.format import plural
from dbelief.monitor.status import JobLocation, get_status, to_dict
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.json_values import plain
from dbelief.rundir.summary import Summary


def advise_job(where: str, over_s: float, as_json: bool, apply: bool, sleep: Callable[[float], object]) -> None:
    """Print the advice for a job, and with `apply` scale it by the best one that a running job can be changed by.

    Raises
    ------
    UserError
        It has not trained long enough, it has ended and is to be changed, or its strategy has no mini-batches.
    RuntimeFailure
        It does not train, or its coordinator does not answer.
    """
    found = _measured(where, over_s, sleep)
    if missing := found.missing():
        raise UserError(f"{where}: it has not trained long enough to know: {missing}")
    findings = findings_of(found)
    applied = _apply(findings, where) if apply else ""
    if as_json:
        print(json.dumps(plain(findings.described() | ({"applied": applied} if apply else {}))))
        return
    Console().print(advised(findings, where))
    if applied:
        print(f"\n{applied}")


def _measured(where: str, over_s: float, sleep: Callable[[float], object]) -> Measurements:
    place = JobLocation.of(where)
    before = get_status(place)
    if isinstance(before, Summary):
        assert place.folder is not None
        return of_summary(load_job(place.folder / "job.yaml"), before)
    if before["state"] != "training":
        waits = f", waiting for {before['waiting_for']}" if before["waiting_for"] else ""
        raise RuntimeFailure(f"job {before['job']} is {before['state']}{waits}: it is advised on while it trains")
    assert place.address is not None
    with closing(CoordinatorClient(place.address, patience_s=ANSWER_S)) as client:
        job = _job_of(client)
        sleep(over_s)
        after = to_dict(client.status())
    return of_statuses(job, before, after)


def _job_of(client: CoordinatorClient) -> Job:
    reply = client.call("Status", wire.StatusRequest(job=True))
    return parse_job(reply.job_yaml, Path(reply.job_folder), client.address)


def _apply(findings: Findings, where: str) -> str:
    """Scale the job by the best advice that scales; a line with what was done."""
    if findings.measurements.over:
        raise UserError(f"{where}: the job has ended, and nothing of it can be changed; --set fields of its next run")
    best = next((one for one in findings.advice if one.scales), None)
    if best is None:
        return "nothing is applied: no other number of workers or shards would bring anything"
    return scale_job(where, *_request(best))


def _request(advice: Advice) -> tuple[Any, int]:
    if advice.workers is not None:
        return "replica", advice.workers
    assert advice.shards is not None, plural(0, "shard")
    return "shard", advice.shards
