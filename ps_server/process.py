"""A shard's process: joins a job, serves until the job or the process is ended, and may then wait for the next job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dbelief.errors import UNFINISHED, Rejected, ResourceExhausted, RuntimeFailure
from dbelief.process.log import clear_context, set_context
from dbelief.process.runtime import Event, runtime
from dbelief.process.terminal.console import host_and_port, interrupt_event
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MembershipClient
from dbelief.rpc.client.job_wait import wait_for_job
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import parameters_pb2
from dbelief.rpc.server.server import Server, address_towards, is_every_address
from dbelief.rundir.record import PushRecorder
from dbelief.telemetry.metrics import Metrics

from .rpc.servicer import ShardService

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.5
_SET_S = 30.0
"""Longest wait for a snapshot set after a termination request, in seconds."""


@dataclass(frozen=True)
class Options:
    """Options of a shard process; see the options of `dbelief ps`."""

    coordinator: str
    listen: str
    advertise: str | None
    metrics_listen: str | None
    record: Path | None
    number: int | None
    name: str | None
    patience: float
    at_end: str
    shared_memory: bool
    direct_streams: bool


def serve(options: Options) -> int:
    """Run as a shard of one job; with `at_end` "wait", of one job after another; the exit code.

    Raises
    ------
    UserError
        The address cannot be listened on, or is not valid.
    RuntimeFailure
        It could not join as a shard, or its incarnation ended before the job.
    """
    if options.advertise is not None:
        host_and_port(options.advertise)
    with closing(Metrics("ps")) as metrics:
        while _serve(options, metrics) and options.at_end == "wait":
            metrics.settle()  # and release the former shard
            clear_context()
            options = replace(options, metrics_listen=None)  # metrics are served already
    return UNFINISHED if options.at_end == "wait" else 0


def _serve(options: Options, metrics: Metrics) -> bool:
    """Run as a shard of one job; returns whether the job ended, rather than a signal ending the process."""
    with ExitStack() as stack:
        recorder = PushRecorder()
        host = host_and_port(options.listen)[0] if options.direct_streams else None
        service = ShardService(metrics, record=recorder.note, shares_memory=options.shared_memory, direct_host=host)
        server = Server(options.listen, service.register, parameters_pb2.DESCRIPTOR.services_by_name["Parameters"])
        stack.callback(service.controller.close)
        stack.callback(service.end_socket_streams)
        stack.callback(server.close)
        client = CoordinatorClient(options.coordinator)
        stack.callback(client.close)
        metrics.add_callback("retries_total", lambda: client.retries, to="coordinator")
        metrics.serve(options.metrics_listen)
        if options.at_end == "wait":
            log.info(f"waiting for a job at {options.coordinator}")
            with interrupt_event() as interrupted:
                if not wait_for_job(options.coordinator, interrupted):
                    return False
        log.info(f"joining the job at {options.coordinator}, for up to {options.patience:g} s")
        client.wait(options.patience)  # before it has joined, a signal ends this process directly
        job = client.status().job
        address = options.advertise or server.address
        if options.advertise is None and is_every_address(options.listen):
            address = address_towards(options.coordinator, server.port, options.patience)
        requested, name = options.number, options.name
        member = _join(
            lambda: MembershipClient(client, wire.ROLE_SHARD, job, address=address, preferred_id=requested, name=name),
            options.patience,
        )
        service.controller.index, service.controller.run_id = member.id, member.run_id
        member.figures = service.figures
        service.controller.leads_until_s = lambda: member.confirmed_s + member.timeout_s
        set_context(role="ps", job=job, id=member.id, step=lambda: service.controller.pushes)
        log.info(f"shard {member.id} of job {job} on {address}")
        with interrupt_event() as interrupted:
            while not service.controller.stopped.wait(0.1) and not interrupted.is_set() and not member.over:
                pass
            if interrupted.is_set():
                _drain_until_snapshot(member, service.controller.stopped)
        if member.lost:
            server.close(0.0)  # further pushes to an incarnation that has ended would be lost
            service.end_socket_streams()
        elif member.over and service.controller.has_segments and not service.controller.stopped.is_set():
            service.controller.stopped.wait(5.0)  # the coordinator sends stop after its last snapshot and export
        recorder.write(options.record, member.id)
        lost = not service.controller.stopped.is_set() and not interrupted.is_set() and member.lost
        reason = "signal" if interrupted.is_set() else "the job is over"
        member.leave(reason)
        if lost:
            raise Rejected(f"shard {member.id} of job {job}: {lost}")
        log.info(f"shard {member.id} of job {job} ends: {reason}")
        return not interrupted.is_set()


def _drain_until_snapshot(member: MembershipClient, stopped: Event) -> None:
    """Continue to serve until a snapshot set holds this shard's state, so that its replacement can start from it."""
    log.info(f"asked to end; waiting up to {_SET_S:g} s for a snapshot set")
    until_s = runtime.monotonic() + _SET_S
    member.ending = True
    with suppress(RuntimeFailure):  # an unreachable coordinator writes no set
        member.beat(patience_s=0.0)
        while not (member.may_leave or member.over or stopped.wait(_ASK_AGAIN_S) or runtime.monotonic() > until_s):
            member.beat(patience_s=0.0)


def _join(join: Callable[[], MembershipClient], patience_s: float) -> MembershipClient:
    """Join the job as a member; while all places are taken, retry until the deadline.

    A place may be held by an earlier incarnation whose missing heartbeats are not detected yet.

    Raises
    ------
    ResourceExhausted
        No place became free.
    """
    until_s = runtime.monotonic() + patience_s
    announced = False
    while True:
        try:
            return join()
        except ResourceExhausted as error:
            if runtime.monotonic() > until_s:
                raise
            if not announced:
                log.warning(f"{error}; waiting up to {patience_s:g} s for a place")
            announced = True
        runtime.sleep(_ASK_AGAIN_S)
