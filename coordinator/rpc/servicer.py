"""gRPC service of the coordinator: converts requests to events of the machine, and results to replies."""

from __future__ import annotations

import grpc

from dbelief.core.lease import DataLease
from dbelief.core.push import STALENESS
from dbelief.errors import Rejected
from dbelief.process.console import host_and_port
from dbelief.process.printable import printable
from dbelief.rpc import coordination_pb2 as wire
from dbelief.rpc import coordination_pb2_grpc as stubs
from dbelief.rpc.channel import answers
from dbelief.rpc.server.auth import must_be, must_be_in
from dbelief.rpc.wire.convert import layout_from_wire, placement_to_wire

from ..core.states import (
    WAYS,
    Assignment,
    BundleLease,
    EvaluationLease,
    GroupLease,
    ProgressReport,
    ResourceUsage,
    Wait,
)
from ..job.machine import JobMachine
from ..monitoring.allreduce_traffic import Edge, WorkerTraffic
from ..runtime.event_loop import EventLoop
from ..sandblaster.pass_scheduler import BundleResult, WorkRequest
from .status import KINDS, STATES, build_status

LONGEST_TEXT = 512
"""Maximum characters of a member's name, address or digest: they are stored, logged and displayed."""
_TOKENS = {"shard": "ps", "replica": "worker", "client": "worker"}
"""Role whose token is required to join as each kind."""


class CoordinatorService(stubs.CoordinatorServicer):
    """Service of one job. Every handler holds the event loop's lock for one step of the machine, and never blocks."""

    def __init__(self, runner: EventLoop) -> None:
        self._runner = runner

    def refused(self, kind: str) -> None:
        """Count a call that was answered with an error of this kind."""
        self._runner.refused(kind)

    @answers
    def Join(self, request: wire.JoinRequest, context: grpc.ServicerContext) -> wire.JoinReply:
        """See protos/coordination.proto."""
        kind = _member_kind(request.role)
        must_be(_TOKENS[kind])
        for what, text in (("name", request.name), ("address", request.address), ("digest", request.source_digest)):
            if len(text) > LONGEST_TEXT:
                raise Rejected(f"a member's {what} has at most {LONGEST_TEXT} characters, not {len(text)}")
            if printable(text) != text:
                raise Rejected(f"a member's {what} has no control characters: {printable(text)}")
        if request.address:
            host_and_port(request.address)
        layout = layout_from_wire(request.layout) if request.layout else None
        with self._runner.step() as (machine, now_s):
            if request.job != machine.job.name:
                raise Rejected(f"this coordinator runs job {machine.job.name!r}, not {request.job!r}")
            member = machine.join(
                kind,
                request.token,
                request.name,
                request.address,
                now_s,
                layout,
                request.source_digest,
                request.wish if request.HasField("wish") else None,
                request.again,
                request.train_samples,
            )
            return wire.JoinReply(
                id=member.number,
                incarnation=member.incarnation,
                leader_epoch=self._runner.leadership.epoch,
                beat_s=machine.members.heartbeat_timeout_s(member.kind),
                run_id=machine.run_id,
            )

    @answers
    def Beat(self, request: wire.BeatRequest, context: grpc.ServicerContext) -> wire.BeatReply:
        """See protos/coordination.proto."""
        kind = _member_kind(request.role)
        must_be(_TOKENS[kind])
        with self._runner.step() as (machine, now_s):
            must_be_in(machine.run_id, request.run_id)
            member = machine.beat(kind, request.id, request.incarnation, now_s)
            if member and request.HasField("shard"):
                self._shard_told(machine, request)
            if request.leaving:
                machine.leave(kind, request.id, request.incarnation, request.reason, now_s)
            reply = wire.BeatReply(state=STATES[machine.state], reason=machine.reason, member=member)
            if machine.training.groups is not None:
                reply.ended_generation = machine.training.groups.ended
            if kind == "shard" and request.ending:
                reply.may_leave = machine.may_leave(request.id, request.incarnation)
            if kind != "shard":
                reply.initialise = machine.initialises(request.id, request.incarnation)
            # During a rollback of all shards, a new placement is sent only once the rollback is complete.
            placement = machine.placement if machine.recovery.rollback_set is None else None
            if placement is not None and placement.epoch > request.placement_epoch:
                reply.placement.CopyFrom(placement_to_wire(placement))
                machine.commit_due = True  # another coordinator must find pushes that go there now
            return reply

    def _shard_told(self, machine: JobMachine, request: wire.BeatRequest) -> None:
        told = request.shard
        if machine.members.find("shard", request.id, request.incarnation) is not None:  # not a follower
            self._runner.seen.shard(request.id, told)
            machine.chain_told(request.id, told.chain_epoch, told.followed, told.unfollowed)

    @answers
    def Lease(self, request: wire.LeaseRequest, context: grpc.ServicerContext) -> wire.LeaseReply:
        """See protos/coordination.proto."""
        with self._runner.step() as (machine, now_s):
            must_be_in(machine.run_id, request.run_id)
            asks = WorkRequest(
                request.turn,
                tuple(request.holds),
                request.ahead,
                request.last,
                request.steps,
                request.broken,
                request.why,
            )
            work = machine.lease(request.replica, request.incarnation, request.next_sequence, now_s, asks)
            return _assignment_reply(work, machine)

    @answers
    def Report(self, request: wire.ReportRequest, context: grpc.ServicerContext) -> wire.ReportReply:
        """See protos/coordination.proto."""
        must_be("worker" if request.incarnation else "operator")
        reply = wire.ReportReply()
        who = request.replica, request.incarnation
        with self._runner.step() as (machine, now_s):
            if request.incarnation:  # the launcher belongs to no run
                must_be_in(machine.run_id, request.run_id)
            machine.record_heartbeat_progress(*who, now_s)
            machine.record_usage(*who, _spent(request))
            if request.HasField("progress"):
                p = request.progress
                told = ProgressReport(p.lease, p.pushes, p.samples, p.steps, p.loss_sum, p.staleness_sum, p.lost)
                machine.report_progress(*who, told, now_s)
            if request.initialised:
                machine.initialised(request.incarnation, now_s)
            if request.HasField("evaluation"):
                e = request.evaluation
                accuracy = e.accuracy if e.HasField("accuracy") else None
                reply.keep_as = machine.evaluated(*who, e.lease, e.loss, accuracy, now_s)
            if request.HasField("bundle"):
                b = request.bundle
                machine.bundle_done(*who, BundleResult(b.turn, b.bundle, b.loss_sum, b.samples, b.seconds), now_s)
            if request.HasField("failed"):
                f = request.failed
                machine.bundle_failed(*who, f.turn, f.bundle, f.reason, now_s)
            if request.HasField("traffic") and machine.members.find_pusher(*who):
                self._runner.record_traffic(_part(request.replica, request.traffic))
            if request.kept:
                machine.evaluation_stored(request.kept, now_s)
            if machine.members.find("client", *who) is not None:
                reply.state, reply.evaluate = STATES[machine.state], machine.client_evaluates
            # The launcher, which is no member, reports trouble too; that of an ended incarnation is ignored.
            if request.trouble and (not request.incarnation or machine.members.find_pusher(*who)):
                machine.progress.divergence.not_finite += bool(
                    request.incarnation
                )  # the one trouble that a member tells of
                machine.fail(
                    f"replica {request.replica}: {request.trouble}" if request.incarnation else request.trouble
                )
        return reply

    @answers
    def Status(self, request: wire.StatusRequest, context: grpc.ServicerContext) -> wire.StatusReply:
        """See protos/coordination.proto."""
        if request.scales:
            must_be("operator")
        return build_status(self._runner, request)

    @answers
    def Stop(self, request: wire.StopRequest, context: grpc.ServicerContext) -> wire.StopReply:
        """See protos/coordination.proto."""
        with self._runner.step() as (machine, now_s):
            machine.stop(request.reason or "stopped", now_s)
            return wire.StopReply(state=STATES[machine.state])

    @answers
    def Scale(self, request: wire.ScaleRequest, context: grpc.ServicerContext) -> wire.ScaleReply:
        """See protos/coordination.proto."""
        scaling = self._runner.scaling
        with self._runner.step() as (machine, now_s):
            if request.WhichOneof("what") == "shards":
                before = len(machine.members.needed)
                machine.want_shards(request.shards, now_s)
                return wire.ScaleReply(before=before, todo=scaling.manual_steps(request.shards, before, now_s))
            scaling.want(request.replicas, machine.state, now_s)
            return wire.ScaleReply(before=len(machine.members.alive("replica")))


def _member_kind(role: wire.Role.ValueType) -> str:
    kind = KINDS.get(role)
    if kind is None:
        raise Rejected("a member is a shard, a replica or a client")
    return kind


def _spent(request: wire.ReportRequest) -> ResourceUsage:
    w = request.wire
    figures = {name: getattr(w, name) for name in (*WAYS, "residual")} if request.HasField("wire") else {}
    return ResourceUsage(dict(request.seconds), tuple(request.staleness[: len(STALENESS) + 1]), figures)


def _part(replica: int, traffic: wire.Traffic) -> WorkerTraffic:
    edges = [Edge(row.rank, row.messages, row.bytes, row.seconds) for row in traffic.taken]
    return WorkerTraffic(replica, traffic.generation, traffic.rank, traffic.ranks, traffic.steps, edges)


def _training(lease: DataLease) -> wire.TrainingLease:
    return wire.TrainingLease(
        lease=lease.id,
        epoch=lease.epoch,
        start=lease.start,
        stop=lease.stop,
        first_sequence=lease.first_sequence,
        samples_before=lease.samples_before,
        clock=lease.clock,
        member_epoch=lease.member_epoch,
        stride=lease.stride if lease.stride > 1 else 0,
    )


def _group_lease_reply(work: GroupLease, machine: JobMachine) -> wire.LeaseReply:
    """Lease with the addresses of its group's members."""
    addresses = {member.number: member.address for member in machine.members.all() if member.kind == "replica"}
    training = _training(work.lease)
    group = training.group
    group.generation, group.samples_before, group.written = work.generation, work.samples_before, work.written
    for number, samples in work.members:
        group.members.add(replica=number, address=addresses[number], samples=samples)
    return wire.LeaseReply(training=training)


def _assignment_reply(work: Assignment, machine: JobMachine) -> wire.LeaseReply:
    if isinstance(work, DataLease):
        return wire.LeaseReply(training=_training(work))
    if isinstance(work, GroupLease):
        return _group_lease_reply(work, machine)
    if isinstance(work, EvaluationLease):
        return wire.LeaseReply(
            evaluation=wire.EvaluationLease(lease=work.id, set=work.set, vector=work.vector, samples=work.samples)
        )
    if isinstance(work, BundleLease):
        return wire.LeaseReply(
            bundle=wire.Bundle(
                turn=work.turn,
                bundle=work.bundle,
                epoch=work.epoch,
                start=work.start,
                stop=work.stop,
                portion=work.portion,
            )
        )
    if isinstance(work, Wait):
        return wire.LeaseReply(wait_s=work.seconds)
    return wire.LeaseReply(stop=work.reason or "the job is over")
