"""gRPC service of the coordinator: converts requests to events of the machine, and results to replies."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from dbelief.core.lease import DataLease
from dbelief.core.push import STALENESS
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Deposed, Rejected
from dbelief.monitor.event_text import event_text
from dbelief.process.printable import printable
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import host_and_port
from dbelief.rpc.channel import answers
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import coordination_pb2_grpc as stubs
from dbelief.rpc.server.auth import must_be, must_be_in
from dbelief.rpc.wire.convert import layout_from_wire, placement_to_wire

from ..core import effects, messages
from ..core.states import State
from ..job.machine import JobMachine
from ..monitoring.tables import FullTables
from ..runtime.event_loop import EventLoop
from ..runtime.held_requests import LONGEST_HOLD_S
from .status import KINDS, STATES, build_status

log = logging.getLogger(__name__)

LONGEST_TEXT = 512
"""Maximum characters of a member's name, address or digest: they are stored, logged and displayed."""
T = TypeVar("T")
M = TypeVar("M", bound=Message)
_WANTS = frozenset(map(int, messages.Wants))
_TOKENS = {"shard": "ps", "replica": "worker", "client": "worker"}
"""Role whose token is required to join as each kind."""


class CoordinatorService(stubs.CoordinatorServicer):
    """Service of one job. A handler holds the event loop's lock for a step of the machine, and never blocks in it."""

    def __init__(self, runner: EventLoop) -> None:
        self._event_loop = runner
        self._full_tables = FullTables()

    def refused(self, kind: str) -> None:
        """Count a call that was answered with an error of this kind."""
        self._event_loop.refused(kind)

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
        samples = _samples(request.samples)
        with self._event_loop.step() as (machine, now_s):
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
                request.preferred_id if request.HasField("preferred_id") else None,
                request.restarted,
                request.train_samples,
                samples,
            )
            return wire.JoinReply(
                id=member.number,
                incarnation=member.incarnation,
                leader_epoch=self._event_loop.leadership.epoch,
                heartbeat_timeout_s=machine.members.heartbeat_timeout_s(member.kind),
                run_id=machine.run_id,
                first_run_id=machine.initialization.first_run_id,
            )

    @answers
    def Beat(self, request: wire.BeatRequest, context: grpc.ServicerContext) -> wire.BeatReply:
        """See protos/coordination.proto."""
        kind = _member_kind(request.role)
        must_be(_TOKENS[kind])
        with self._event_loop.step() as (machine, now_s):
            must_be_in(machine.run_id, request.run_id)
            member = machine.heartbeat(kind, request.id, request.incarnation, now_s)
            if member and request.HasField("shard"):
                self._record_shard_report(machine, request)
            if member and request.HasField("processors"):
                who = kind, request.id, request.incarnation
                self._event_loop.throughput.record_processors(*who, request.processors)
            if request.leaving:
                machine.leave(kind, request.id, request.incarnation, request.reason, now_s, request.failed)
            reply = wire.BeatReply(state=STATES[machine.state], reason=machine.outcome, member=member)
            reply.uncertain = not self._event_loop.leadership.certain
            if machine.over or not member:
                self._check_may_end(machine)
            reply.ended_generation = machine.training.policy.ended_generation
            reply.beat_every_s = machine.members.heartbeat_every_s(kind)
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

    def _record_shard_report(self, machine: JobMachine, request: wire.BeatRequest) -> None:
        figures = request.shard
        if machine.members.find("shard", request.id, request.incarnation) is not None:  # not a follower
            self._event_loop.throughput.record_shard(request.id, figures)
            for table in self._full_tables.new(figures):
                event = effects.LogEvent("table_full", {"table": table, "shard": request.id})
                log.warning(event_text(event.event, event.fields))
                machine.actions.append(event)
            machine.follower_reported(request.id, figures.link_epoch, figures.in_sync, figures.follower_error)

    @answers
    def Lease(self, request: wire.LeaseRequest, context: grpc.ServicerContext) -> wire.LeaseReply:
        """See protos/coordination.proto; a request of a replica in lockstep that finds no work is held."""
        wants = messages.Wants(request.wants) if request.wants in _WANTS else messages.Wants.ANY
        asked = _value(messages.WorkRequest, request, held_bundles=tuple(request.held_bundles), wants=wants)
        held, key = self._event_loop.held, None
        with self._event_loop.step() as (machine, now_s):
            must_be_in(machine.run_id, request.run_id)
            if request.HasField("report"):
                self._record_work(machine, request.replica, request.incarnation, request.report, now_s)
            held.begin(asked.incarnation)
            offer, heard_s = machine.offer, now_s  # before the assignment: this request may complete a block
            reply = self._assign(machine, asked, heard_s, now_s)
            if reply.HasField("wait_s") and request.hold_s > 0 and machine.training.policy.holds_requests:
                key = held.hold(asked.incarnation)
        if key is None:
            return reply
        reply.wait_s = 0.0
        until_s = runtime.monotonic() + min(request.hold_s, LONGEST_HOLD_S)
        with held.releasing(asked.incarnation, key):
            while reply.HasField("wait_s") and held.wait(asked.incarnation, key, offer, until_s):
                with self._event_loop.step() as (machine, now_s):
                    if not held.is_last(asked.incarnation, key):
                        break  # its connection broke: the work that it finds now is for the request that followed
                    offer = machine.offer
                    reply = self._assign(machine, asked, heard_s, now_s)
        return reply

    def _assign(
        self, machine: JobMachine, asked: messages.WorkRequest, heard_s: float, now_s: float
    ) -> wire.LeaseReply:
        """Reply with the work for a request that was received at `heard_s`."""
        work = machine.lease(asked, now_s, heard_s)
        if isinstance(work, messages.Stop):
            self._check_may_end(machine)
        reply = _assignment_reply(work, machine)
        reply.report_every_s, reply.samples = machine.report_every_s, machine.progress.samples
        if isinstance(work, messages.Wait):
            reply.supply = _supply(machine, asked)
        return reply

    def _record_work(
        self, machine: JobMachine, number: int, incarnation: int, report: wire.ReportRequest, now_s: float
    ) -> None:
        """Record a member's progress in its lease, its figures, and what it received from others of its group."""
        machine.record_usage(number, incarnation, _usage(report))
        pusher = machine.members.find_pusher(number, incarnation)
        if pusher is not None and report.HasField("processors"):
            self._event_loop.throughput.record_processors(pusher.kind, number, incarnation, report.processors)
        if report.skipped:
            machine.skip_samples(number, incarnation, [(one.lease, one.start, one.stop) for one in report.skipped])
        if report.HasField("progress"):
            machine.report_progress(number, incarnation, _value(messages.ProgressReport, report.progress), now_s)
        if report.HasField("traffic") and pusher is not None:
            self._event_loop.record_traffic(number, report.traffic)

    def _check_may_end(self, machine: JobMachine) -> None:
        """Check, before a reply that ends a member, that no other coordinator can lead.

        Raises
        ------
        Deposed
            One may: this coordinator was suspended, and does not know the members that have joined since, or its job
            has failed because another one leads.
        """
        if not self._event_loop.leadership.certain:
            raise Deposed(f"another coordinator may lead job {machine.job.name}")

    @answers
    def Report(self, request: wire.ReportRequest, context: grpc.ServicerContext) -> wire.ReportReply:
        """See protos/coordination.proto."""
        must_be("worker" if request.incarnation else "operator")
        reply = wire.ReportReply()
        who = request.replica, request.incarnation
        with self._event_loop.step() as (machine, now_s):
            if request.incarnation:  # the launcher belongs to no run
                must_be_in(machine.run_id, request.run_id)
            member = machine.record_contact(*who, now_s)
            reply.beat_now = bool(request.incarnation) and (machine.over or not member)
            reply.report_every_s = machine.report_every_s
            self._record_work(machine, *who, request, now_s)
            reply.samples = machine.progress.samples
            if request.initialised_in:
                machine.initialised(request.incarnation, request.initialised_in, now_s)
            if request.HasField("evaluation"):
                e = request.evaluation
                accuracy = e.accuracy if e.HasField("accuracy") else None
                reply.store_as = machine.evaluated(*who, e.lease, e.loss, accuracy, now_s, dict(e.metrics))
                if reply.store_as:
                    reply.placement_epoch = _placement_epoch(machine)
            if request.HasField("evaluation_failed"):
                bad = request.evaluation_failed
                machine.evaluation_failed(request.incarnation, bad.lease, bad.reason, now_s)
            if request.HasField("bundle"):
                machine.bundle_done(*who, _value(messages.BundleResult, request.bundle), now_s)
            if request.HasField("failed"):
                f = request.failed
                machine.bundle_failed(*who, f.pass_number, f.bundle, f.reason, now_s)
            if request.stored_lease:
                machine.evaluation_stored(request.stored_lease, now_s)
            if machine.over:
                self._check_may_end(machine)
            if machine.members.find("client", *who) is not None:
                reply.state, reply.evaluate = STATES[machine.state], machine.client_evaluates
            if request.trouble and not request.incarnation:  # of the launcher, which is no member
                machine.launcher_failed(request.trouble, now_s)
            elif request.trouble and machine.members.find_pusher(*who):  # that of an ended incarnation is ignored
                machine.progress.divergence.not_finite += 1  # the only reason that a member reports
                machine.fail(f"replica {request.replica}: {request.trouble}")
        return reply

    @answers
    def Status(self, request: wire.StatusRequest, context: grpc.ServicerContext) -> wire.StatusReply:
        """See protos/coordination.proto."""
        if request.scales:
            must_be("operator")
        return build_status(self._event_loop, request)

    @answers
    def Stop(self, request: wire.StopRequest, context: grpc.ServicerContext) -> wire.StopReply:
        """See protos/coordination.proto."""
        with self._event_loop.step() as (machine, now_s):
            machine.stop(request.reason or "stopped", now_s)
            return wire.StopReply(state=STATES[machine.state])

    @answers
    def Scale(self, request: wire.ScaleRequest, context: grpc.ServicerContext) -> wire.ScaleReply:
        """See protos/coordination.proto."""
        scaling = self._event_loop.scaling
        with self._event_loop.step() as (machine, now_s):
            if request.WhichOneof("what") == "shards":
                before = len(machine.members.needed)
                machine.request_shards(request.shards, now_s)
                return wire.ScaleReply(before=before, todo=scaling.manual_steps(request.shards, before, now_s))
            scaling.request(request.replicas, machine.state, now_s)
            return wire.ScaleReply(before=len(machine.members.alive("replica")))


def _supply(machine: JobMachine, asked: messages.WorkRequest) -> wire.Supply.ValueType:
    """What a member that has to wait may expect."""
    # In lockstep a block may wait for the shards after it has emptied the pool, or when the job begins to close: its
    # leases are still to come, and the job ends when they are trained.
    if machine.leases.find_granted(asked.incarnation, asked.last_lease):
        return wire.SUPPLY_LATER
    if machine.state is not State.READY:
        return wire.SUPPLY_OVER
    return wire.SUPPLY_LATER if machine.leases.room() else wire.SUPPLY_DRAINED


def _samples(text: str) -> SampleForm | None:
    """The form of a member's samples, if it has data."""
    try:
        return SampleForm.parse(text) if text else None
    except ValueError as error:
        raise Rejected(f"a member's samples: {error}") from None


def _member_kind(role: wire.Role.ValueType) -> str:
    kind = KINDS.get(role)
    if kind is None:
        raise Rejected("a member is a shard, a replica or a client")
    return kind


def _usage(request: wire.ReportRequest) -> messages.ResourceUsage:
    w = request.wire
    figures = {name: getattr(w, name) for name in (*messages.WAYS, "residual")} if request.HasField("wire") else {}
    stale, cached = tuple(request.staleness[: len(STALENESS) + 1]), (request.cache_reads, request.cache_hits)
    return messages.ResourceUsage(dict(request.seconds), stale, figures, *map(dict, cached))


def _value(kind: type[T], message: Message, **others: Any) -> T:
    """A value whose fields are those of the same names in a message, except for the others."""
    return kind(**{name: getattr(message, name) for name in kind.__annotations__.keys() - others.keys()}, **others)


def _message(kind: type[M], value: object, **others: Any) -> M:
    """A message whose fields are the attributes of the same names of a value, except for the others."""
    names = [name for name in kind.DESCRIPTOR.fields_by_name if name not in others]
    return kind(**{name: getattr(value, name) for name in names if hasattr(value, name)}, **others)


def _training(lease: DataLease) -> wire.TrainingLease:
    return _message(wire.TrainingLease, lease, lease=lease.id, stride=lease.stride if lease.stride > 1 else 0)


def _group_lease_reply(work: messages.GroupLease, machine: JobMachine) -> wire.LeaseReply:
    """Lease with the addresses of its group's members."""
    addresses = {member.number: member.address for member in machine.members.all() if member.kind == "replica"}
    training = _training(work.lease)
    group = training.group
    group.generation, group.samples_before, group.written = work.generation, work.samples_before, work.written
    for number, samples in work.members:
        group.members.add(replica=number, address=addresses[number], samples=samples)
    return wire.LeaseReply(training=training)


def _placement_epoch(machine: JobMachine) -> int:
    """Epoch of the current placement, for a member that is to use no earlier one; persisted before it is sent."""
    machine.commit_due = True  # else the next coordinator may have an earlier placement, and the member waits for this
    return machine.placement.epoch if machine.placement is not None else 0


def _assignment_reply(work: messages.Assignment, machine: JobMachine) -> wire.LeaseReply:
    if isinstance(work, DataLease):
        training = _training(work)
        training.before_block, block = machine.training.policy.block_of(work)
        training.block.extend(block)
        return wire.LeaseReply(training=training)
    if isinstance(work, messages.GroupLease):
        return _group_lease_reply(work, machine)
    if isinstance(work, messages.EvaluationLease):
        epoch = _placement_epoch(machine)
        return wire.LeaseReply(evaluation=_message(wire.EvaluationLease, work, lease=work.id, placement_epoch=epoch))
    if isinstance(work, messages.BundleLease):
        return wire.LeaseReply(bundle=_message(wire.Bundle, work, placement_epoch=_placement_epoch(machine)))
    if isinstance(work, messages.Wait):
        return wire.LeaseReply(wait_s=work.seconds)
    return wire.LeaseReply(stop=work.reason or "the job is over")
