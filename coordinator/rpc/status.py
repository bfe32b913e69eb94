"""Status of the job, for gRPC clients and the status page."""

from __future__ import annotations

import math

from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.wire.convert import placement_to_wire
from dbelief.rundir.summary import RoundFigures

from ..core.members import Member
from ..core.states import State
from ..job.machine import JobMachine
from ..monitoring.rounds import round_figures
from ..monitoring.tables import totals
from ..runtime.event_loop import EventLoop
from ..scheduling.batch_method import Sandblaster

KINDS = {wire.ROLE_SHARD: "shard", wire.ROLE_REPLICA: "replica", wire.ROLE_CLIENT: "client"}
STATES = {state: wire.State.Value(f"STATE_{state.name}") for state in State}
_ROLES = {kind: role for role, kind in KINDS.items()}


def build_status(event_loop: EventLoop, request: wire.StatusRequest) -> wire.StatusReply:
    """Build the status reply, in one step of the machine that changes nothing."""
    with event_loop.step() as (machine, now_s):
        if request.scales:
            event_loop.scaling.launcher_seen(now_s)
        reply = _figures(event_loop, machine)
        for member in machine.members.all():
            reply.members.append(_member(event_loop, machine, member, now_s))
        if machine.training.batch is not None:
            reply.batch.CopyFrom(_batch(machine.training.batch, machine.progress.pushes))
        shards = {member.number for member in machine.members.alive("shard")}
        reply.processors.CopyFrom(event_loop.throughput.own_processors())
        reply.tables.extend(totals(event_loop.throughput.shard_reports, shards, machine.progress.cached))
        if (rounds := round_figures(machine)) is not None:
            reply.rounds.CopyFrom(_rounds(rounds))
        if request.placement and machine.placement is not None:
            reply.placement.CopyFrom(placement_to_wire(machine.placement))
        if request.job:
            reply.job_yaml = event_loop.job_yaml
            reply.job_folder = str(machine.job.folder)
        if request.curves:
            for name, over, points in event_loop.throughput.curves.curves():
                reply.curves.add(name=name, over=over, x=[x for x, _ in points], y=[y for _, y in points])
            for event in event_loop.throughput.curves.recent():
                reply.events.add(time_s=event.time_s, text=event.text, trouble=event.trouble)
        return reply


def _figures(event_loop: EventLoop, machine: JobMachine) -> wire.StatusReply:
    p = machine.progress
    last, test = p.last, p.test
    return wire.StatusReply(
        job=machine.job.name,
        state=STATES[machine.state],
        reason=machine.outcome,
        samples=p.samples,
        total_samples=machine.total or 0,
        epoch=machine.epoch,
        loss=p.loss,
        validation_loss=last.loss if last else math.nan,
        validation_accuracy=_number(last.accuracy if last else None),
        test_loss=test.loss if test else math.nan,
        test_accuracy=_number(test.accuracy if test else None),
        validation_metrics=last.measured if last else {},
        test_metrics=test.measured if test else {},
        samples_per_s=event_loop.speed.per_second() if machine.state is State.READY else event_loop.speed.mean(),
        staleness_mean=p.staleness_mean,
        staleness=p.stale(),
        elapsed_s=event_loop.elapsed_s(),
        wall_limit_s=machine.job.limits.wall_s or 0.0,
        shards=len(machine.members.alive("shard")),
        run_folder=event_loop.where,
        waiting_for=machine.waiting_for() if not machine.over else "",
        wanted_replicas=event_loop.scaling.wanted,
        wanted_shards=machine.resharding.wanted,
        needed_shards=sorted(machine.members.needed),
        lease_samples=machine.lease_samples,
        unleased_samples=max(0, machine.leases.left),
        eta_s=math.nan if machine.over else event_loop.exporter.eta_s,
    )


def _member(event_loop: EventLoop, machine: JobMachine, member: Member, now_s: float) -> wire.MemberStatus:
    status = wire.MemberStatus(
        role=_ROLES.get(member.kind, wire.ROLE_SHARD),
        follower=member.kind == "follower",
        id=member.number,
        name=member.name,
        state=_state(machine, member),
        staleness_mean=math.nan,
        silent_s=max(0.0, now_s - member.last_beat_s),
        incarnation=member.incarnation,
    )
    incarnation, processors = event_loop.throughput.processors.get((member.kind, member.number), (0, None))
    if processors is not None and incarnation == member.incarnation:
        status.processors.CopyFrom(processors)
    if status.follower:
        return status
    if member.kind != "shard":
        own = machine.progress.replicas.get(member.number)
        if own is not None:
            moved = own.moved
            status.steps, status.pushes = own.steps, own.pushes
            status.bytes_sent, status.bytes_received = moved["sent"], moved["received"]
            status.seconds.update(own.seconds)
        status.samples = machine.progress.samples_of(member.number)
        status.staleness_mean = machine.progress.staleness_of(member.number)
        status.samples_per_s = event_loop.throughput.per_second(member, "samples")
        status.straggler = member.alive and member.number in event_loop.exporter.stragglers
        return status
    status.pushes_per_s = event_loop.throughput.per_second(member, "pushes")
    status.bytes_per_s = event_loop.throughput.per_second(member, "bytes")
    if (held := event_loop.throughput.shard_reports.get(member.number)) is not None:
        status.segments, status.parameters = held.segments, held.parameters
        status.pushes, status.bytes_sent, status.bytes_received = held.pushes, held.bytes_sent, held.bytes_received
    return status


def _state(machine: JobMachine, member: Member) -> str:
    """The displayed state of a member, one of those in `dbelief.monitor.states`."""
    if not member.alive:
        return member.state
    if member.kind == "follower":
        return "following" if member.state == "following" else "catching up"
    at_work = machine.state in (State.READY, State.CLOSING)
    if member.kind == "shard":
        return "restoring" if member.number in machine.recovery.unavailable else "serving" if at_work else "waiting"
    if member.kind == "client":  # it has no lease to derive the state from
        return "training" if at_work and machine.progress.samples_of(member.number) else "waiting"
    return member.state


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _rounds(figures: RoundFigures) -> wire.RoundStatus:
    return wire.RoundStatus(
        rounds=figures.rounds,
        pushes_per_round=_number(figures.pushes_per_round),
        late_pushes=figures.late_pushes,
        late_age=_number(figures.late_age),
        sent_per_sample=_number(figures.sent_per_sample),
        received_per_sample=_number(figures.received_per_sample),
        computing=_number(figures.computing),
    )


def _batch(batch: Sandblaster, bundles: int) -> wire.BatchStatus:
    method, turn = batch.method, batch.current_pass
    return wire.BatchStatus(
        iteration=method.iterations,
        iterations=method.rules.iterations or 0,
        loss=method.value,
        gradient_norm=batch.gradient_norm,
        step=batch.step_length,
        evaluations=method.evaluations,
        pass_number=method.number,
        portions_done=turn.portions_done if turn is not None else 0,
        portions=turn.portions if turn is not None else 0,
        bundles=bundles,
        backups=batch.backups[0],
        backups_won=batch.backups[1],
    )
