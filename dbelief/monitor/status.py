"""Status of a running job, read from its coordinator; summary of a finished run, read from its run folder."""

from __future__ import annotations

import errno
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dbelief.core.push import STALENESS
from dbelief.errors import Rejected, RuntimeFailure, Unavailable, UserError
from dbelief.monitor.states import ENDED, job_state
from dbelief.process.terminal.console import host_and_port
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.diagnosis import why_not
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.wire.convert import message_row
from dbelief.rundir.folder import ADDRESS, CREDENTIALS
from dbelief.rundir.stored.copies import copy_until_exit
from dbelief.rundir.summary import RoundFigures, Summary, has_ended, read_summary
from dbelief.security.identity import current, load
from dbelief.url import Url, is_url, parse_url

LOOK_S = 0.25
SILENT_S = 5.0
"""A coordinator that was reached and then does not answer for this many seconds is considered failed."""

_STATES = {number: job_state(name.removeprefix("STATE_").lower()) for name, number in wire.State.items()}
_ROLES = {wire.ROLE_SHARD: "ps", wire.ROLE_REPLICA: "worker", wire.ROLE_CLIENT: "client"}


def to_dict(status: wire.StatusReply) -> dict[str, Any]:
    """The status as plain Python values, in the form of `LiveView.update`; `curves` and `events` where requested."""
    fields = {
        "job": status.job,
        "state": _STATES[status.state],
        "reason": status.reason,
        "waiting_for": status.waiting_for,
        "samples": status.samples,
        "total_samples": status.total_samples or None,
        "epoch": status.epoch,
        "loss": _known(status.loss),
        "validation_accuracy": _known(status.validation_accuracy),
        "validation_loss": _known(status.validation_loss),
        "test_accuracy": _known(status.test_accuracy),
        "test_loss": _known(status.test_loss),
        "validation_metrics": dict(status.validation_metrics),
        "test_metrics": dict(status.test_metrics),
        "samples_per_s": status.samples_per_s,
        "staleness_mean": _known(status.staleness_mean),
        "staleness": _spread(status.staleness),
        "elapsed_s": status.elapsed_s,
        "wall_limit_s": status.wall_limit_s or None,
        "eta_s": _known(status.eta_s),
        "shards": status.shards,
        "run_folder": status.run_folder,
        "batch": _batch(status.batch) if status.HasField("batch") else None,
        "rounds": _rounds(status.rounds) if status.HasField("rounds") else None,
        "tables": [message_row(one) for one in status.tables],
        "members": _members(status.members),
        "wanted_replicas": status.wanted_replicas if status.HasField("wanted_replicas") else None,
        "wanted_shards": status.wanted_shards,
        "lease_samples": status.lease_samples or None,
        "unleased_samples": status.unleased_samples if status.lease_samples else None,
        "processors": message_row(status.processors) if status.HasField("processors") else None,
    }
    if status.curves:
        fields["curves"] = {one.name: {"over": one.over, "x": list(one.x), "y": list(one.y)} for one in status.curves}
    if status.events:
        fields["events"] = [{"time_s": one.time_s, "text": one.text, "trouble": one.trouble} for one in status.events]
    return fields


def _spread(counts: Sequence[int]) -> list[dict[str, int | None]]:
    """Push counts by staleness: `up_to` is the bucket's upper bound in versions or rounds; None: above all bounds."""
    return [{"up_to": most, "pushes": count} for most, count in zip((*STALENESS, None), counts, strict=False)]


def _members(members: Iterable[wire.MemberStatus]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for member in members:
        row: dict[str, Any] = {
            "id": member.id,
            "role": _ROLES[member.role],
            "name": member.name,
            "state": member.state,
            "samples": None,
            "staleness": _known(member.staleness_mean),
            "last_seen_s": member.silent_s,
            "totals": _totals(member),
        }
        if member.role == wire.ROLE_SHARD:
            row |= {"pushes_per_s": member.pushes_per_s, "bytes_per_s": member.bytes_per_s}
            row |= {"segments": member.segments, "parameters": member.parameters, "follows": member.follower}
        else:
            row |= {"samples": member.samples, "samples_per_s": member.samples_per_s, "straggler": member.straggler}
        rows.append(row)
    return rows


def _totals(member: wire.MemberStatus) -> dict[str, Any]:
    """What a member has done so far, as totals; `processors` None: not reported."""
    return {
        "incarnation": member.incarnation,
        "steps": member.steps,
        "pushes": member.pushes,
        "sent": member.bytes_sent,
        "received": member.bytes_received,
        "seconds": dict(member.seconds),
        "processors": message_row(member.processors) if member.HasField("processors") else None,
    }


def _batch(batch: wire.BatchStatus) -> dict[str, Any]:
    return {
        "iteration": batch.iteration,
        "iterations": batch.iterations or None,
        "loss": _known(batch.loss),
        "gradient_norm": _known(batch.gradient_norm),
        "step": _known(batch.step),
        "evaluations": batch.evaluations,
        "pass": batch.pass_number,
        "portions_done": batch.portions_done,
        "portions": batch.portions,
        "bundles": batch.bundles,
        "backups_launched": batch.backups,
        "backups_won": batch.backups_won,
    }


def _rounds(rounds: wire.RoundStatus) -> dict[str, Any]:
    return {name: _known(getattr(rounds, name)) for name in RoundFigures.model_fields}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class JobLocation:
    """Location of a job: a coordinator address, or a run folder, or both (for a run in progress).

    `url`: of the run, where the folder is a copy.
    """

    address: str | None
    folder: Path | None = None
    url: Url | None = None

    @classmethod
    def of(cls, text: str) -> JobLocation:
        """Location from the user's text.

        Raises
        ------
        UserError
            The text is neither `host:port` nor a run folder or its URL.
        """
        url = parse_url(text) if is_url(text) else None
        folder = copy_until_exit(url) if url is not None else Path(text)
        if (folder / "job.yaml").is_file():
            folder = folder.resolve()
            if current() is None and (folder / CREDENTIALS / "operator").is_dir():
                load(folder / CREDENTIALS / "operator", ("operator",))
            try:
                address = (folder / ADDRESS).read_text()
                host_and_port(address)
            except FileNotFoundError:
                return cls(None, folder, url)
            except UserError as error:
                raise UserError(f"{(url or folder) / ADDRESS}: {error}") from None
            return cls(address, folder, url)
        if folder.is_dir():
            raise UserError(f"{text}: is no run folder: it holds no job.yaml")
        if not re.fullmatch(r"[^/\s]+:\d{1,5}", text):
            raise UserError(f"{text}: neither a run folder nor HOST:PORT of a coordinator")
        return cls(text)


def get_status(place: JobLocation) -> dict[str, Any] | Summary:
    """Status of a running job; the summary of a finished run.

    Raises
    ------
    RuntimeFailure
        The coordinator does not answer, and the run folder holds no summary.
    """
    why = ""
    if place.address is not None:
        try:
            with closing(CoordinatorClient(place.address, patience_s=0.0)) as client:
                status = to_dict(client.status())
            if place.folder is None or status["job"] == place.folder.name:  # another job may have the port by now
                return status
        except Rejected as error:
            if place.folder is None:
                raise RuntimeFailure(f"{place.address}: the process there is not a coordinator ({error})") from error
        except Unavailable as error:
            why = why_not(place.address)
            if place.folder is None:
                hint = "name its address as HOST:PORT, or a run folder, runs/NAME"
                cause = f" ({why})" if why else ""
                raise Unavailable(f"{place.address}: no coordinator answers there{cause}; {hint}") from error
    assert place.folder is not None
    path = place.folder / "summary.json"
    if not path.exists():
        absent = f"{place.url or place.folder}: no coordinator answers, and there is no summary.json: "
        unknown = not why or why == os.strerror(errno.ECONNREFUSED)
        cause = (
            "the run is not up yet, or was killed (--resume continues it)"
            if unknown
            else f"a process is at {place.address}, and {why}"
        )
        raise RuntimeFailure(absent + cause)
    return read_summary(path)


def watch(
    place: JobLocation, show: Callable[[Mapping[str, Any]], None], interrupted: threading.Event
) -> dict[str, Any] | Summary:
    """Show a job's status and curves until it ends or `interrupted` is set; return its summary or last status.

    Raises
    ------
    RuntimeFailure
        The coordinator is unreachable, and the run folder is not on this machine or holds no summary.
    """
    status = get_status(place)
    if isinstance(status, Summary):
        return status
    assert place.address is not None
    with closing(CoordinatorClient(place.address, patience_s=SILENT_S)) as client:
        while status["state"] not in ENDED:
            show(status)
            if interrupted.wait(LOOK_S):
                return status
            try:
                status = to_dict(client.status(curves=True))
            except Unavailable:  # it may have ended between two requests
                folder = place.folder or Path(status["run_folder"])
                if has_ended(folder):
                    return read_summary(folder / "summary.json")
                job, samples = status["job"], status["samples"]
                raise RuntimeFailure(
                    f"{place.address}: the coordinator of job {job} is gone, after {samples} samples"
                ) from None
        show(status)
    return status
