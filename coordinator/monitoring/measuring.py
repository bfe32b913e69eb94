"""Measurements of the job for its model, as `dbelief advise` takes them from two statuses."""

from __future__ import annotations

from typing import Any

from dbelief.advise.measurements import of_statuses
from dbelief.advise.model_of import model_of
from dbelief.advise.step_model import Change
from dbelief.job import Job
from dbelief.rpc.wire.convert import message_row

from ..core.members import Member
from ..job.machine import JobMachine
from ..scheduling.auto_scaling import Factor, Totals
from .throughput import MemberThroughput

_ROLES = {"shard": "ps", "follower": "ps", "replica": "worker", "client": "client"}


def totals(machine: JobMachine, throughput: MemberThroughput, elapsed_s: float) -> Totals:
    """Totals so far; kept with them are the fields of a status that advice is taken from. Cost: that of the members."""
    progress = machine.progress
    status = {
        "elapsed_s": elapsed_s,
        "members": [_row(machine, throughput, member) for member in machine.members.all()],
        "processors": message_row(throughput.own_processors()),
        "lease_samples": machine.lease_samples,
        "total_samples": machine.total,
        "unleased_samples": max(0, machine.leases.left),
    }
    return Totals(progress.samples, sum(progress.seconds.values()), status)


def predictions(job: Job, before: dict[str, Any], after: dict[str, Any], count: int) -> Factor | None:
    """Throughput by number of workers, as a multiple of that between two statuses; None where too little is measured.

    `count`: present number; fewer may train just now, and the same share of another number would.
    """
    found = of_statuses(job, before, after)
    if found.missing():
        return None
    model = model_of(found)

    def factor(other: int) -> float:
        workers = max(1, round(other * model.workers / count))
        return model.factor(Change(workers=workers))

    return factor


def _row(machine: JobMachine, throughput: MemberThroughput, member: Member) -> dict[str, Any]:
    """A member's row, in the form of a status."""
    incarnation, processors = throughput.processors.get((member.kind, member.number), (0, None))
    own = machine.progress.replicas.get(member.number) if member.kind in ("replica", "client") else None
    moved = own.moved if own is not None else {"sent": 0, "received": 0}
    held = throughput.shard_reports.get(member.number) if member.kind == "shard" else None
    return {
        "role": _ROLES[member.kind],
        "id": member.number,
        "state": member.state,
        "follows": member.kind == "follower",
        "parameters": held.parameters if held is not None else 0,
        "samples": own.samples if own is not None else 0,
        "totals": {
            "incarnation": member.incarnation,
            "steps": own.steps if own is not None else 0,
            "pushes": own.pushes if own is not None else 0,
            **moved,
            "seconds": own.seconds if own is not None else {},
            "processors": message_row(processors)
            if processors is not None and incarnation == member.incarnation
            else None,
        },
    }
