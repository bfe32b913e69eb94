"""A shard's process: it joins a job, serves until that is over or it is asked to end, and waits for the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dbelief.errors import Rejected, ResourceExhausted, RuntimeFailure
from dbelief.process.console import announce, host_and_port, interrupt_event
from dbelief.process.log import clear_context, set_context
from dbelief.rpc import coordination_pb2 as wire
from dbelief.rpc import parameters_pb2
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MembershipClient
from dbelief.rpc.client.job_wait import wait_for_job
from dbelief.rpc.server.server import Server, address_towards, is_every_address
from dbelief.rundir.ps_record import Recorder
from dbelief.telemetry.metrics import Metrics

from .rpc.servicer import ShardService

_ASK_AGAIN_S = 0.5
_SET_S = 30.0
"""How long one that is asked to end waits for a set."""


@dataclass(frozen=True)
class Options:
    """How a shard is to run here; see the options of `dbelief ps`."""

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


def serve(options: Options) -> None:
    """Be a shard of one job; with `at_end` "wait", of one after another.

    Raises
    ------
    Mistake
        Nobody can listen, or be found, there.
    Failure
        It did not become a shard, or its life was over before the job.
    """
    if options.advertise is not None:
        host_and_port(options.advertise)
    with closing(Metrics("ps")) as metrics:
        while _serve(options, metrics) and options.at_end == "wait":
            metrics.settle()  # and let go of the shard that was
            clear_context()
            options = replace(options, metrics_listen=None)  # they are served already


def _serve(options: Options, metrics: Metrics) -> bool:
    """Be a shard of one job; whether it was the job that ended, and not a signal."""
    with ExitStack() as stack:
        recorder = Recorder()
        service = ShardService(metrics, record=recorder.note, shares_memory=options.shared_memory)
        server = Server(options.listen, service.register, parameters_pb2.DESCRIPTOR.services_by_name["Parameters"])
        stack.callback(service.life.close)
        stack.callback(server.close)
        client = CoordinatorClient(options.coordinator)
        stack.callback(client.close)
        metrics.add_callback("retries_total", lambda: client.retries, to="coordinator")
        metrics.serve(options.metrics_listen)
        if options.at_end == "wait":
            announce(f"waiting for a job at {options.coordinator}")
            with interrupt_event() as interrupted:
                if not wait_for_job(options.coordinator, interrupted):
                    return False
        announce(f"joining the job at {options.coordinator}, for up to {options.patience:g} s")
        client.wait(options.patience)  # until there is something to leave, a signal simply ends this process
        job = client.status().job
        address = options.advertise or server.address
        if options.advertise is None and is_every_address(options.listen):
            address = address_towards(options.coordinator, server.port, options.patience)
        wish, name = options.number, options.name
        member = _join(
            lambda: MembershipClient(client, wire.ROLE_SHARD, job, address=address, wish=wish, name=name),
            options.patience,
        )
        service.life.index, service.life.run_id = member.id, member.run_id
        member.figures = service.figures
        set_context(role="ps", job=job, id=member.id, step=lambda: service.life.pushes)
        announce(f"shard {member.id} of job {job} on {address}")
        with interrupt_event() as interrupted:
            while not service.life.stopped.wait(0.1) and not interrupted.is_set() and not member.over:
                pass
            if interrupted.is_set():
                _drain_until_snapshot(member, service.life.stopped)
        if member.lost:
            server.close(0.0)  # what was still pushed into a life that is over would be lost
        elif member.over and service.life.has_segments and not service.life.stopped.is_set():
            service.life.stopped.wait(5.0)  # the coordinator says when its last snapshot and export are done
        recorder.write(options.record, member.id)
        lost = not service.life.stopped.is_set() and not interrupted.is_set() and member.lost
        reason = "signal" if interrupted.is_set() else "the job is over"
        member.leave(reason)
        if lost:
            raise Rejected(f"shard {member.id} of job {job}: {lost}")
        announce(f"shard {member.id} of job {job} ends: {reason}")
        return not interrupted.is_set()


def _drain_until_snapshot(member: MembershipClient, stopped: threading.Event) -> None:
    """Serve on until a snapshot set has what this shard holds, so that who comes in its place begins there."""
    announce(f"asked to end; waiting up to {_SET_S:g} s for a snapshot set")
    until_s = time.monotonic() + _SET_S
    member.ending = True
    with suppress(RuntimeFailure):  # who cannot be asked takes no set
        member.beat(patience_s=0.0)
        while not (member.may_leave or member.over or stopped.wait(_ASK_AGAIN_S) or time.monotonic() > until_s):
            member.beat(patience_s=0.0)


def _join(join: Callable[[], MembershipClient], patience_s: float) -> MembershipClient:
    """Become a member; while all places are taken, wait for one: an earlier life's silence may not be noticed yet.

    Raises
    ------
    Full
        None became free.
    """
    until_s = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return join()
        except ResourceExhausted as error:
            if time.monotonic() > until_s:
                raise
            if not told:
                announce(f"{error}; waiting up to {patience_s:g} s for a place")
            told = True
        time.sleep(_ASK_AGAIN_S)
