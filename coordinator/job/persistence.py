"""Persisted state for coordinator failover: serialized as text, and restored. No clock, no socket.

A snapshot set holds the parameters; this holds the state of the job. It is written before any message that depends on
it is sent. Progress reports are not persisted: a replica reports totals, so its next report makes up for a lost one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from dbelief.core.layout import Layout
from dbelief.core.placement import Placement
from dbelief.errors import RuntimeFailure, UserError

from ..core.effects import ConfirmOwnership, DropLedger, Fence, FinishRun, LogEvent, RollBack
from ..core.states import ShutdownPhase, State
from .machine import JobMachine

FORMAT = 2
_BEFORE = (State.EMPTY, State.INITIALISING)
_LAYOUT, _PLACEMENT = TypeAdapter(Layout), TypeAdapter(Placement)


def serialize(machine: JobMachine, now_s: float) -> dict[str, str]:
    """State of the job by sections that change at different times, so that only changed sections are written."""
    initialization, members = machine.initialization, machine.members
    job = {
        "format": FORMAT,
        "state": machine.state.value,
        "reason": machine.reason,
        "shard_epoch": machine.shard_epoch,
        "deaths": Counter(machine.failed_members),
        "finished": machine.finished,
        "resumes": machine.resumes,
        "set": machine.recovery.set_id,
        "set_best": asdict(machine.recovery.best) if machine.recovery.best else None,
        "holders": machine.recovery.owners,
        "back_to": machine.recovery.rollback_set,
        "chains": machine.replication.state(),
        "ending": machine.shutdown.state(),
        "resizing": machine.resharding.state(now_s),
        "incarnations": members.incarnations,
        "run_id": machine.run_id,
    }
    parts: dict[str, Any] = {"state": job, "members": members.state(), "training": machine.training.state(now_s)}
    texts = {name: json.dumps(part) for name, part in parts.items()}
    if initialization.layout is not None and initialization.placement is not None:
        texts["layout"] = _layout_text(initialization.layout, initialization.source_digest)
        texts["placement"] = _placement_text(initialization.placement)
    return texts


# Serialized with every lease and nearly always unchanged: with thousands of segments they dominate the cost.


@lru_cache(maxsize=4)
def _layout_text(layout: Layout, source: str) -> str:
    return json.dumps({"boxes": [asdict(box) for box in layout.boxes], "source": source})


@lru_cache(maxsize=4)
def _placement_text(placement: Placement) -> str:
    return json.dumps(asdict(placement))


def load_unfinished(stored: Mapping[str, bytes]) -> dict[str, Any] | None:
    """Stored state of a job that is not over, or whose run folder is not closed; None where there is none.

    Raises
    ------
    RuntimeFailure
        The state cannot be read.
    """
    parts = _parts(stored)
    return None if parts is None or parts["state"]["finished"] else parts


def outcome(stored: Mapping[str, bytes]) -> str:
    """Final state and reason of a finished run, as far as stored; "" where no run has finished.

    Raises
    ------
    RuntimeFailure
        The state cannot be read.
    """
    parts = _parts(stored)
    return f"{parts['state']['state']}: {parts['state']['reason']}" if parts and parts["state"]["finished"] else ""


def last_shard_epoch(stored: Mapping[str, bytes]) -> int:
    """The highest shard epoch issued by any run of the job, as far as stored; 0 where there was none."""
    parts = _parts(stored)
    return int(parts["state"]["shard_epoch"]) if parts else 0


def _parts(stored: Mapping[str, bytes]) -> dict[str, Any] | None:
    if "state" not in stored:
        return None
    try:
        parts: dict[str, Any] = {
            name: json.loads(stored[name])
            for name in ("state", "members", "training", "layout", "placement")
            if name in stored
        }
        state = parts["state"]
        state["finished"] = bool(state["finished"])
        if state["format"] > FORMAT or (state["format"] < FORMAT and not state["finished"]):
            raise RuntimeFailure(f"the registry's state has format {state['format']}; this version reads {FORMAT}")
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeFailure(f"the job's state in the registry cannot be read: {error!r}") from error
    return parts


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
    machine.initialization.run_id = state.get("run_id", 0)  # a run started by an earlier version has none
    if not training_started(parts):
        machine.shard_epoch = state["shard_epoch"] + 1
        return
    then, now = parts["training"]["leases"]["epoch_samples"], machine.leases.epoch_samples
    if then != now:
        raise UserError(f"the run began with {then:,} training samples, and the job's data holds {now:,} now")
    machine.shard_epoch = state["shard_epoch"]
    machine.state, machine.reason = State(state["state"]), state["reason"]
    # An earlier version stored a list, which grew with every failure.
    died = Counter(state["deaths"]).elements() if "deaths" in state else state["died"]
    machine.failed_members = [*died, "coordinator"]
    machine.members.restore(parts["members"], now_s)
    machine.training.take_over(parts["training"], now_s)
    layout, placement = _LAYOUT.validate_python(parts["layout"]), _PLACEMENT.validate_python(parts["placement"])
    machine.initialization.restore(layout, parts["layout"]["source"], placement)
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
    latest = {member.incarnation: member.number for member in members.all()}
    numbers = latest | machine.training.leases.holders() | members.numbers
    alive = {member.incarnation for member in members.alive("replica", "client")}
    for incarnation in sorted(members.dead - members.settled | (machine.training.leases.holders().keys() - alive)):
        machine.actions.append(Fence(numbers.get(incarnation, 0), incarnation))
    machine.actions += [DropLedger(incarnation) for incarnation in sorted(members.unforgotten)]
    for member in machine.members.alive("shard"):
        needed = member.number in machine.members.needed
        if needed and machine.recovery.owners.get(member.number) != member.incarnation:
            machine.actions.append(machine.recovery.recover(member, machine.next_shard_epoch()))
    if machine.recovery.rollback_set is not None and not machine.recovery.unavailable:
        machine.actions += [*machine.replication.detach_all(), RollBack(machine.recovery.rollback_set)]
    if machine.state is State.CLOSING and machine.shutdown.phase > ShutdownPhase.TEST:
        machine.shutdown.restart_reads()
    if machine.over:
        machine.actions.append(FinishRun())
