"""`dbelief coordinator JOB`: runs one job."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from dbelief.console import announce, exits_cleanly, host_and_port, on_signals, pairs, write_address
from dbelief.errors import Mistake, Unreachable
from dbelief.logs import known
from dbelief.rpc.settings import limit_threads, prepare_process
from dbelief.security.options import may_be_insecure, with_credentials

if TYPE_CHECKING:
    from dbelief.clock import Clock
    from dbelief.registry import Registry

    from .page import Page

SCRAPE_S = 10.0
"""How long the numbers of a job that is over wait for whoever scrapes them, if anybody does."""


class Looks(NamedTuple):
    """Where those who look find this process; None: nowhere."""

    metrics: str | None
    page: str | None


def _registry(context: click.Context, parameter: click.Parameter, url: str) -> str:
    """Refuse a password where everybody on this machine can read it."""
    from dbelief.registry import has_password

    written = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    if written and has_password(url):
        raise click.BadParameter(
            "a password on a command line is for all to see: leave it to --credentials, or give the URL as "
            "DBELIEF_REGISTRY"
        )
    return url


@click.command("coordinator")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    envvar="DBELIEF_SET",
    show_envvar=True,
    help="Replace a field of the job file.",
)
@click.option(
    "--listen",
    default="127.0.0.1:7070",
    show_default=True,
    envvar="DBELIEF_LISTEN",
    show_envvar=True,
    help="Address to listen on; port 0: any free.",
)
@click.option(
    "--registry",
    "registry_url",
    default="memory:",
    show_default=True,
    envvar="DBELIEF_REGISTRY",
    show_envvar=True,
    callback=_registry,
    help="redis://, rediss:// or unix:// URL, where the job's state survives; memory: keeps it in this process. Its "
    "password belongs into the credentials, or into the environment.",
)
@click.option(
    "--name",
    default=None,
    help="What this coordinator is called, however often it is started: it need not wait for its earlier life's lease.",
)
@with_credentials("coordinator")
@may_be_insecure
@click.option("--metrics", "metrics_listen", default=None, help="Address for Prometheus, host:port; port 0: any free.")
@click.option(
    "--page",
    "page_listen",
    default=None,
    metavar="HOST:PORT",
    help="Address for browsers, where a page shows how the job goes; port 0: any free.",
)
@click.option("--resume", is_flag=True, help="Go on from the newest whole snapshot set of the run folder.")
@click.option("--fresh", is_flag=True, help="Begin anew though the registry knows an unfinished run of this job.")
@click.option(
    "--once",
    is_flag=True,
    help="Where the registry knows a run of this job that has ended, say how, and do not begin another: exit code 0.",
)
@click.option(
    "--run-folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    default=None,
    help="A run folder made before.",
)
@click.option("--ready-file", type=click.Path(path_type=Path), default=None, help="Write the address here once up.")
@click.option(
    "--patience", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait for the registry."
)
@click.option(
    "--at-end",
    type=click.Choice(["exit", "wait"]),
    default="exit",
    show_default=True,
    help="When the job is over: exit, or go on telling how it ended until a signal comes.",
)
@click.option(
    "--on-signal",
    type=click.Choice(["stop", "leave"]),
    default="stop",
    show_default=True,
    help="SIGTERM and Ctrl-C stop the job, or leave it as it is to the next coordinator.",
)
def command(
    job_file: Path,
    overrides: tuple[str, ...],
    listen: str,
    registry_url: str,
    name: str | None,
    metrics_listen: str | None,
    page_listen: str | None,
    resume: bool,
    fresh: bool,
    once: bool,
    run_folder: Path | None,
    ready_file: Path | None,
    patience: float,
    at_end: str,
    on_signal: str,
) -> None:
    """Run the job that JOB describes: wait for its shards and replicas, train, evaluate, export, end.

    Where the registry knows an unfinished run of it, go on with that; while another coordinator leads it, stand by.
    """
    prepare_process()
    limit_threads(1)
    with exits_cleanly(), on_signals() as interrupted:
        code = _run(
            job_file,
            overrides,
            listen,
            registry_url,
            name,
            Looks(metrics_listen, page_listen),
            resume,
            fresh,
            once,
            run_folder,
            ready_file,
            patience,
            at_end == "wait",
            on_signal == "leave",
            interrupted,
        )
    raise SystemExit(code)


def _run(
    job_file: Path,
    overrides: tuple[str, ...],
    listen: str,
    registry_url: str,
    name: str | None,
    looks: Looks,
    resume: bool,
    fresh: bool,
    once: bool,
    run_folder: Path | None,
    ready_file: Path | None,
    patience: float,
    waits: bool,
    leaves: bool,
    interrupted: threading.Event,
) -> int:
    from dbelief.clock import SystemClock
    from dbelief.errors import Interrupted
    from dbelief.job import load_job
    from dbelief.metrics import Metrics
    from dbelief.registry import open_registry
    from dbelief.report.folder import found_at, held
    from dbelief.rpc import coordination_pb2 as wire
    from dbelief.rpc import coordination_pb2_grpc as stubs
    from dbelief.rpc.serving import Server, check_free
    from dbelief.security import may_listen
    from dbelief.status import status_of

    from .leadership import Leadership
    from .runner import Runner
    from .service import CoordinatorService
    from .start import start
    from .states import State
    from .takeover import ended
    from .telling import status

    if ready_file is not None and not ready_file.absolute().parent.is_dir():
        raise Mistake(f"--ready-file {ready_file}: there is no folder {ready_file.parent}")
    may_listen(listen)
    if leaves and registry_url == "memory:":
        raise Mistake("--on-signal leave: with --registry memory: no other coordinator would know of the job")
    clock = SystemClock()
    job = load_job(job_file, pairs(overrides))
    with ExitStack() as stack:
        registry = open_registry(registry_url, clock)
        stack.callback(registry.close)
        _wait_for(registry, job.name, patience, clock, interrupted)
        owner = name or f"{socket.gethostname()}:{os.getpid()}"
        metrics = Metrics("coordinator", standing_by=True)
        metrics.leading.set(0)
        stack.callback(metrics.close)
        metrics.serve(looks.metrics)
        with _standing_by(listen):
            leadership = Leadership.take(registry, job.name, owner, clock, interrupted)
        if leadership is None:
            raise Interrupted(f"stopped while standing by for job {job.name}")
        stack.callback(leadership.release)
        before = ended(leadership.stored()) if once else ""
        if before:
            announce(f"job {job.name} has ended already ({before}), and is to run once")
            if waits:
                with closing(Server(listen, lambda _: None)):  # it lives, and leads nothing
                    interrupted.wait()
            return 0
        page = _serve_page(looks.page, stack)
        check_free(listen)  # before the run folder is touched
        # Only its leader may touch the run folder: another coordinator may be writing into it.
        begun = start(job, leadership.stored(), run_folder, resume, fresh, clock.now())
        stack.enter_context(held(begun.folder))
        runner = Runner(begun.machine, begun.folder, leadership, metrics, clock, begun.began_wall_s)
        service = CoordinatorService(runner)
        contract = wire.DESCRIPTOR.services_by_name["Coordinator"]
        server = Server(listen, lambda s: stubs.add_CoordinatorServicer_to_server(service, s), contract)
        stack.callback(server.close)
        page.tell = lambda: status_of(status(runner, wire.StatusRequest(curves=True)))
        known(role="coordinator", job=job.name, step=lambda: begun.machine.progress.samples)
        announce(
            f"coordinator of job {job.name} on {server.address}, leader epoch {leadership.epoch}, "
            f"run folder {begun.folder}"
        )
        stack.enter_context(found_at(begun.folder, server.address, job))
        if ready_file is not None:
            write_address(ready_file, server.address)
        state = runner.run(interrupted, leaves)
        if state not in (State.DONE, State.FAILED):
            announce(f"job {job.name} is left as it is, {state.value}, to the next coordinator")
            return 0
        announce(f"job {job.name} {state.value}: {begun.machine.reason}")
        if waits:
            interrupted.wait()
        else:
            metrics.wait_for_scrape(SCRAPE_S)
    return 0 if state is State.DONE else 1


def _serve_page(listen: str | None, stack: ExitStack) -> Page:
    """The status page, served for as long as the stack lasts where an address is given."""
    from dbelief.security import current
    from dbelief.web import WebServer

    from .page import Page

    credentials = current()
    page = Page(credentials)
    if listen is not None:
        server = WebServer(listen, page, "the status page", credentials.web_context() if credentials else None)
        stack.callback(server.close)
        announce(f"status page on {server.url}")
    return page


@contextmanager
def _standing_by(listen: str) -> Iterator[None]:
    """Tell of this process' health, on loopback alone, until it leads.

    Who looks for the leader must find nobody here. Where addresses are not a container's own, there is no need.
    """
    from dbelief.rpc.serving import Server, is_every_address

    server = None
    if is_every_address(listen):
        with suppress(Mistake):  # on this host another process has that port: the leader, say
            server = Server(f"127.0.0.1:{host_and_port(listen)[1]}", lambda _: None)
    try:
        yield
    finally:
        if server is not None:
            server.close(0.0)


def _wait_for(registry: Registry, job: str, patience_s: float, clock: Clock, interrupted: threading.Event) -> None:
    """Wait for a registry that was started beside this process, and may come up later."""
    until_s = clock.now() + patience_s
    while True:
        try:
            registry.holder(job)
            return
        except Unreachable as error:
            if clock.now() >= until_s or interrupted.is_set():
                raise
            announce(f"{error}; waiting for it, for up to {patience_s:g} s")
