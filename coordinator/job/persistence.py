"""Persisted state for coordinator failover: serialized as text, and restored. No clock, no socket.

A snapshot set holds the parameters; this holds the state of the job. It is written before any message that depends on
it is sent. Progress reports are not persisted: a replica reports totals, so its next report makes up for a lost one.

The state is stored in fields. A few sections have a constant size. What there is for each member, lease or incarnation
is a row, a field of its own under a name such as "lease:12", so that a commit costs what has changed and not what there
is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease
from dbelief.core.placement import Placement
from dbelief.core.sample_form import SampleForm
from dbelief.errors import RuntimeFailure, UserError
from dbelief.rundir.summary import outcome_text

from ..core.effects import ConfirmOwnership, DropLedger, Fence, FinishRun, LogEvent, RollBack
from ..core.messages import ProgressReport
from ..core.states import State
from ..core.tracked import TrackedDict
from .machine import JobMachine

FORMAT = 6
_SECTIONS = ("training", "layout", "placement")
_COUNTS = {
    "leases": ("epoch", "position", "next_id", "leased", "done"),
    "progress": ("samples", "steps", "pushes", "rounds", "staleness_sum", "losses"),
}
"""What every lease changes in the section "training": it is a section of its own, "counts"."""
_BEFORE = (State.EMPTY, State.INITIALISING)
_LAYOUT, _PLACEMENT = TypeAdapter(Layout), TypeAdapter(Placement)


class RowKind(NamedTuple):
    """One kind of rows.

    Attributes
    ----------
    name
        What the names of its fields begin with.
    rows
        The dictionaries whose keys have such a row.
    row
        The row of a key, JSON-serialisable; None: there is none.
    """

    name: str
    rows: Callable[[JobMachine], tuple[TrackedDict[Any, Any], ...]]
    row: Callable[[JobMachine, Any], Any]


def _member_row(machine: JobMachine, key: tuple[str, int]) -> Any:
    member = machine.members.latest.get(key)
    return member.row() if member is not None else None


def _lease_row(machine: JobMachine, lease: int) -> Any:
    held = machine.leases.outstanding.get(lease)
    if held is None:
        return None
    lease_fields, *rest = held.row()
    return [list(lease_fields.values()), *rest]


def _incarnation_row(machine: JobMachine, incarnation: int) -> Any:
    training = machine.training
    report = training.reports.last.get(incarnation)
    row = {
        "reached": training.leases.reached.get(incarnation),
        "ended": training.leases.ended.get(incarnation),
        "lost": training.losses.counted.get(incarnation),
        "report": list(vars(report).values()) if report is not None else None,
        "unsettled": machine.members.unsettled.get(incarnation),
        "unforgotten": machine.members.unforgotten.get(incarnation),
    }
    return {name: value for name, value in row.items() if value is not None} or None


def _replica_row(machine: JobMachine, replica: int) -> Any:
    own = machine.progress.replicas.get(replica)
    return own.state() if own is not None else None


TABLES = (
    RowKind("member", lambda machine: (machine.members.latest,), _member_row),
    RowKind("lease", lambda machine: (machine.leases.outstanding,), _lease_row),
    RowKind(
        "incarnation",
        lambda machine: (
            machine.leases.reached,
            machine.leases.ended,
            machine.training.losses.counted,
            machine.training.reports.last,
            machine.members.unsettled,
            machine.members.unforgotten,
        ),
        _incarnation_row,
    ),
    RowKind("replica", lambda machine: (machine.progress.replicas,), _replica_row),
)


def serialize(machine: JobMachine, now_s: float) -> dict[str, str]:
    """The complete state by fields. Cost: the size of the state."""
    texts = _sections(machine, now_s)
    for table in TABLES:
        for key in set[Any]().union(*table.rows(machine)):
            row = table.row(machine, key)
            if row is not None:
                texts[_field(table, key)] = _text(row)
    return texts


def serialize_changes(machine: JobMachine, now_s: float) -> dict[str, str | None]:
    """The sections, and the rows that have changed since the last call; None: the row is gone. Cost: their size."""
    texts: dict[str, str | None] = dict(_sections(machine, now_s))
    for table in TABLES:
        for key in set[Any]().union(*(rows.take_changed() for rows in table.rows(machine))):
            row = table.row(machine, key)
            texts[_field(table, key)] = _text(row) if row is not None else None
    return texts


def _field(table: RowKind, key: Any) -> str:
    return f"{table.name}:{key}" if not isinstance(key, tuple) else ":".join([table.name, *map(str, key)])


def _text(part: Any) -> str:
    return json.dumps(part, separators=(",", ":"))


def _sections(machine: JobMachine, now_s: float) -> dict[str, str]:
    """The parts of constant size, which change at different times, so that only changed ones are written."""
    initialization, members = machine.initialization, machine.members
    job = {
        "format": FORMAT,
        "state": machine.state.value,
        "reason": machine.reason,
        "shard_epoch": machine.shard_epoch,
        "deaths": machine.failures,
        "finished": machine.finished,
        "resumes": machine.resumes,
        "trained": machine.trained,
        "set": machine.recovery.set_id,
        "set_best": asdict(machine.recovery.best) if machine.recovery.best else None,
        "holders": machine.recovery.owners,
        "back_to": machine.recovery.rollback_set,
        "chains": machine.replication.state(),
        "ending": machine.shutdown.state(),
        "resizing": machine.resharding.state(now_s),
        "incarnations": members.incarnations,
        "run_id": machine.run_id,
        "first_run_id": machine.initialization.first_run_id,
    }
    training = machine.training.state(now_s)
    counts = {part: {name: training[part].pop(name) for name in names} for part, names in _COUNTS.items()}
    counts["trained_s"] = training.pop("trained_s")
    parts = {"state": job, "training": training, "counts": counts}
    texts = {name: _text(part) for name, part in parts.items()}
    if initialization.layout is not None and initialization.placement is not None:
        form = initialization.samples.text if initialization.samples is not None else ""
        texts["layout"] = _layout_text(initialization.layout, initialization.source_digest, form)
        texts["placement"] = _placement_text(initialization.placement)
    return texts


# Serialized with every lease and nearly always unchanged: with thousands of segments they dominate the cost.


@lru_cache(maxsize=4)
def _layout_text(layout: Layout, source: str, samples: str) -> str:
    return json.dumps({"boxes": [asdict(box) for box in layout.boxes], "source": source, "samples": samples})


@lru_cache(maxsize=4)
def _placement_text(placement: Placement) -> str:
    return json.dumps(asdict(placement))


def outcome(stored: Mapping[str, bytes]) -> str:
    """Final state and reason of a finished run, as far as stored; "" where no run has finished.

    Raises
    ------
    RuntimeFailure
        The state cannot be read.
    """
    state = _read_state(stored)
    if not state or not state["finished"]:
        return ""
    return f"{state['state']}: {outcome_text(state['reason'], state.get('ending', {}).get('failures', {}))}"


def last_shard_epoch(stored: Mapping[str, bytes]) -> int:
    """The highest shard epoch issued by any run of the job, as far as stored; 0 where there was none."""
    state = _read_state(stored)
    return int(state["shard_epoch"]) if state else 0


def _read_state(stored: Mapping[str, bytes]) -> dict[str, Any] | None:
    """The section "state", of any format; None where no state is stored."""
    if "state" not in stored:
        return None
    try:
        state: dict[str, Any] = json.loads(stored["state"])
        return state | {"finished": bool(state["finished"])}
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> RuntimeFailure:
    return RuntimeFailure(f"the job's state in the registry cannot be read: {error!r}")


def load_unfinished(stored: Mapping[str, bytes]) -> dict[str, Any] | None:
    """Stored state of a job that is not over, or whose run folder is not closed; None where there is none.

    It consists of the sections, with the rows in their places.

    Raises
    ------
    RuntimeFailure
        The state cannot be read, or is of another format.
    """
    state = _read_state(stored)
    if state is None or state["finished"]:
        return None
    try:
        if state["format"] != FORMAT:
            raise RuntimeFailure(
                f"the registry's state has format {state['format']}, and this version reads {FORMAT}: let the version "
                "that began the run finish it, or use --resume to go on from its newest snapshot set, or --fresh"
            )
        parts = {name: json.loads(stored[name]) for name in _SECTIONS if name in stored} | {"state": state}
        _put_rows(parts, stored)
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(error) from error
    return parts


def _put_rows(parts: dict[str, Any], stored: Mapping[str, bytes]) -> None:
    """Put the rows into the sections, as lists."""
    rows: dict[str, dict[str, Any]] = {table.name: {} for table in TABLES}
    for name, text in stored.items():
        kind, colon, key = name.partition(":")
        if colon:
            rows[kind][key] = json.loads(text)
    training, leases = parts["training"], sorted(rows["lease"].items(), key=lambda row: int(row[0]))
    for part, counts in json.loads(stored["counts"]).items():
        training[part] = {**training[part], **counts} if part in _COUNTS else counts
    incarnations = {int(key): row for key, row in rows["incarnation"].items()}

    def by_incarnation(name: str) -> list[Any]:
        return [[key, row[name]] for key, row in incarnations.items() if name in row]

    parts["members"] = {
        "unsettled": by_incarnation("unsettled"),
        "unforgotten": [key for key, _ in by_incarnation("unforgotten")],
        "latest": list(rows["member"].values()),
    }
    training["leases"] |= {
        "held": [[_named(DataLease, fields), *rest] for _, (fields, *rest) in leases],
        "reached": by_incarnation("reached"),
        "ended": by_incarnation("ended"),
    }
    training["losses"] = by_incarnation("lost")
    training["reports"] = {key: _named(ProgressReport, row) for key, row in by_incarnation("report")}
    training["progress"]["replicas"] = rows["replica"]


def _named(kind: type[DataLease] | type[ProgressReport], row: list[Any]) -> dict[str, Any]:
    """The fields of a dataclass by name."""
    return dict(zip(kind.__dataclass_fields__, row, strict=True))


def training_started(parts: Mapping[str, Any]) -> bool:
    """Whether training had started; before that only the numbers already issued are restored."""
    return State(parts["state"]["state"]) not in _BEFORE


def restore(machine: JobMachine, parts: Mapping[str, Any], now_s: float) -> None:
    """Restore a new machine to the stored state.

    Raises
    ------
    UserError
        The job's data has changed meanwhile.
    """
    state = parts["state"]
    machine.members.incarnations = state["incarnations"]
    machine.initialization.run_id = state["run_id"]
    machine.initialization.first_run_id = state.get("first_run_id", state["run_id"])
    machine.trained = state["trained"]
    if not training_started(parts):
        machine.shard_epoch = state["shard_epoch"] + 1
        return
    if what := machine.leases.difference(parts["training"]["leases"]):
        raise UserError(f"the run began with {what}")
    machine.shard_epoch = state["shard_epoch"]
    machine.state, machine.reason = State(state["state"]), state["reason"]
    machine.failures = Counter(state["deaths"])
    machine.failures["coordinator"] += 1
    machine.members.restore(parts["members"], now_s)
    machine.training.take_over(parts["training"], now_s)
    layout, placement = _LAYOUT.validate_python(parts["layout"]), _PLACEMENT.validate_python(parts["placement"])
    form = parts["layout"]["samples"]
    samples = SampleForm.parse(form) if form else None
    machine.initialization.restore(layout, parts["layout"]["source"], placement, samples)
    machine.training.policy.set_layout(layout)
    machine.shutdown.restore(state["ending"])
    machine.actions += machine.replication.restore(state["chains"])
    machine.recovery.restore(state["set"], state["set_best"], state["holders"], state["back_to"])
    machine.resharding.restore(state["resizing"], now_s)
    _reissue_pending_effects(machine)


def _reissue_pending_effects(machine: JobMachine) -> None:
    """Queue again what the previous coordinator had requested and may not have completed."""
    machine.actions.append(LogEvent("takeover", {"state": machine.state.value}))
    if machine.resharding.running:
        machine.actions.append(ConfirmOwnership(tuple(sorted(machine.members.needed))))
    membership = machine.training.policy.membership()
    if membership is not None:
        machine.actions.append(membership)
    members = machine.members
    alive = {member.incarnation for member in members.alive("replica", "client")}
    holders = machine.training.leases.holders().items()
    unfenced = {incarnation: number for incarnation, number in holders if incarnation not in alive} | members.unsettled
    for incarnation, number in sorted(unfenced.items()):
        machine.actions.append(Fence(number, incarnation))
    machine.actions += [DropLedger(incarnation) for incarnation in sorted(members.unforgotten)]
    for member in machine.members.alive("shard"):
        needed = member.number in machine.members.needed
        if needed and machine.recovery.owners.get(member.number) != member.incarnation:
            machine.actions.append(machine.recovery.recover(member, machine.next_shard_epoch()))
    if machine.recovery.rollback_set is not None and not machine.recovery.unavailable:
        machine.actions += [*machine.replication.detach_all(), RollBack(machine.recovery.rollback_set)]
    if machine.state is State.CLOSING and machine.shutdown.writes:
        machine.shutdown.restart_reads()
    if machine.over:
        machine.actions.append(FinishRun())
