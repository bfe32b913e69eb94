"""`dbelief ps`: one shard of a job's parameters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dbelief.console import announce, exits_cleanly, host_and_port, on_signals
from dbelief.logs import known
from dbelief.rpc.settings import limit_threads, prepare_process
from dbelief.security.options import may_be_insecure, with_credentials

if TYPE_CHECKING:
    from dbelief.metrics import Metrics
    from dbelief.rpc.coordination import Membership
    from dbelief.rpc.coordination_pb2 import StatusReply

_ASK_AGAIN_S = 0.5
_SET_S = 30.0
"""How long one that is asked to end waits for a set."""


@click.command("ps")
@click.option("--coordinator", required=True, metavar="HOST:PORT", help="Where the job's coordinator listens.")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    envvar="DBELIEF_LISTEN",
    show_envvar=True,
    help="Address to listen on; port 0: any free.",
)
@click.option(
    "--advertise",
    default=None,
    metavar="HOST:PORT",
    help="Address others reach it by; default: --listen, or if that is every address, the one towards the coordinator.",
)
@with_credentials("ps")
@may_be_insecure
@click.option("--metrics", "metrics_listen", default=None, help="Address for Prometheus, host:port; port 0: any free.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for the log of applied pushes.",
)
@click.option("--number", type=click.IntRange(0), default=None, help="The shard number to ask for; default: any free.")
@click.option(
    "--name", default=None, help="What this shard is called, however often it is started: its earlier life is over."
)
@click.option(
    "--patience", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait for the coordinator."
)
@click.option(
    "--at-end",
    type=click.Choice(["exit", "wait"]),
    default="exit",
    show_default=True,
    help="When the job is over: exit, or wait for the next one at the same address, however long.",
)
def command(
    coordinator: str,
    listen: str,
    advertise: str | None,
    metrics_listen: str | None,
    record: Path | None,
    number: int | None,
    name: str | None,
    patience: float,
    at_end: str,
) -> None:
    """Hold one shard of a job's parameters: keep its segments, apply pushes by the job's rule."""
    prepare_process()
    limit_threads(1)
    with exits_cleanly():
        _run(coordinator, listen, advertise, metrics_listen, record, number, name, patience, at_end == "wait")


def _run(
    coordinator: str,
    listen: str,
    advertise: str | None,
    metrics_listen: str | None,
    record: Path | None,
    number: int | None,
    name: str | None,
    patience: float,
    waits: bool,
) -> None:
    from dbelief.metrics import Metrics

    if advertise is not None:
        host_and_port(advertise)
    with closing(Metrics("ps")) as metrics:
        again = _serve(coordinator, listen, advertise, metrics_listen, metrics, record, number, name, patience, waits)
        while again and waits:  # the metrics are served already
            again = _serve(coordinator, listen, advertise, None, metrics, record, number, name, patience, waits)


def _serve(
    coordinator: str,
    listen: str,
    advertise: str | None,
    metrics_listen: str | None,
    metrics: Metrics,
    record: Path | None,
    number: int | None,
    name: str | None,
    patience: float,
    waits: bool,
) -> bool:
    """Be a shard of one job; whether it was the job that ended, and not a signal."""
    from dbelief.errors import Refused
    from dbelief.rpc import coordination_pb2 as wire
    from dbelief.rpc import parameters_pb2
    from dbelief.rpc.coordination import CoordinatorClient, Membership
    from dbelief.rpc.serving import Server, address_towards, is_every_address
    from dbelief.rpc.waiting import wait_for_job

    from .record import Recorder
    from .service import ShardService

    with ExitStack() as stack:
        recorder = Recorder()
        service = ShardService(metrics, record=recorder.note)
        server = Server(listen, service.register, parameters_pb2.DESCRIPTOR.services_by_name["Parameters"])
        stack.callback(server.close)
        client = CoordinatorClient(coordinator)
        stack.callback(client.close)
        metrics.follow("retries_total", lambda: client.retries, to="coordinator")
        metrics.serve(metrics_listen)
        if waits:
            announce(f"waiting for a job at {coordinator}")
            with on_signals() as interrupted:
                if not wait_for_job(coordinator, interrupted):
                    return False
        announce(f"joining the job at {coordinator}, for up to {patience:g} s")
        client.wait(patience)  # until there is something to leave, a signal simply ends this process
        status = client.status(job=True)
        _compile_rule(status)
        job = status.job
        address = advertise or server.address
        if advertise is None and is_every_address(listen):
            address = address_towards(coordinator, server.port, patience)
        member = _join(
            lambda: Membership(client, wire.ROLE_SHARD, job, address=address, wish=number, name=name), patience
        )
        service.life.index = member.id
        member.figures = service.figures
        known(role="ps", job=job, id=member.id, step=lambda: service.life.pushes)
        announce(f"shard {member.id} of job {job} on {address}")
        with on_signals() as interrupted:
            while not service.life.stopped.wait(0.1) and not interrupted.is_set() and not member.over:
                pass
            if interrupted.is_set():
                _keep(member, service.life.stopped)
        if member.lost:
            server.close(0.0)  # what was still pushed into a life that is over would be lost
        elif member.over and not service.life.stopped.is_set():
            service.life.stopped.wait(5.0)  # the coordinator says when its last snapshot and export are done
        recorder.write(record, member.id)
        lost = not service.life.stopped.is_set() and not interrupted.is_set() and member.lost
        reason = "signal" if interrupted.is_set() else "the job is over"
        member.leave(reason)
        if lost:
            raise Refused(f"shard {member.id} of job {job}: {lost}")
        announce(f"shard {member.id} of job {job} ends: {reason}")
        return not interrupted.is_set()


def _keep(member: Membership, stopped: threading.Event) -> None:
    """Serve on until a snapshot set has what this shard holds, so that who comes in its place begins there."""
    from dbelief.errors import Failure

    announce(f"asked to end; waiting up to {_SET_S:g} s for a snapshot set")
    until_s = time.monotonic() + _SET_S
    member.ending = True
    with suppress(Failure):  # who cannot be asked takes no set
        member.beat(patience_s=0.0)
        while not (member.may_leave or member.over or stopped.wait(_ASK_AGAIN_S) or time.monotonic() > until_s):
            member.beat(patience_s=0.0)


def _compile_rule(status: StatusReply) -> None:
    """Have the job's rule compiled, or loaded, before there is anyone to wait for it."""
    from dbelief.job import parse_job
    from dbelief.optim import make_rule, warm_up

    if not status.job_yaml:  # who stands in for a coordinator, say in a benchmark, has none
        return
    rule = parse_job(status.job_yaml, Path(status.job_folder), f"job {status.job}").strategy.at_shards
    warm_up(make_rule(rule.name, rule.model_dump(exclude={"name", "rate"})))


def _join(join: Callable[[], Membership], patience_s: float) -> Membership:
    """Become a member; while all places are taken, wait for one: an earlier life's silence may not be noticed yet.

    Raises
    ------
    Full
        None became free.
    """
    from dbelief.errors import Full

    until_s = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return join()
        except Full as error:
            if time.monotonic() > until_s:
                raise
            if not told:
                announce(f"{error}; waiting up to {patience_s:g} s for a place")
            told = True
        time.sleep(_ASK_AGAIN_S)
