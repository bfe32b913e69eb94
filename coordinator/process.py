"""The coordinator process: waits for the registry, stands by, leads the job to its end, and stays or exits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dbelief.errors import (
    UNFINISHED,
    DbeliefError,
    EvaluationFailed,
    Interrupted,
    JobError,
    RuntimeFailure,
    Unavailable,
    UserError,
)
from dbelief.job import Job, load_job
from dbelief.monitor.status import to_dict
from dbelief.process.atomic_file import sweep, write_whole
from dbelief.process.clock import Clock, SystemClock
from dbelief.process.gc_control import freeze
from dbelief.process.log import set_context
from dbelief.process.runtime import Event
from dbelief.process.terminal.console import host_and_port
from dbelief.process.terminal.overrides import parse_overrides
from dbelief.registry import Registry, open_registry
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import coordination_pb2_grpc as stubs
from dbelief.rpc.server.server import Server, check_free, is_every_address
from dbelief.rundir.claim import RunInProgress, process_name
from dbelief.rundir.folder import found_at
from dbelief.rundir.place import RunPlace, place_of
from dbelief.rundir.summary import set_aside
from dbelief.security import current, may_listen
from dbelief.telemetry.http_server import WebServer
from dbelief.telemetry.metrics import Metrics
from dbelief.telemetry.trackers import check_usable

from .core.states import State
from .job.persistence import outcome
from .monitoring.status_page.application import StatusPage
from .rpc.servicer import CoordinatorService
from .rpc.status import build_status
from .runtime import leader_lease
from .runtime.bootstrap import Bootstrapped, start
from .runtime.event_loop import EventLoop
from .runtime.leader_lease import LeaderLease
from .tracking import tracking

log = logging.getLogger(__name__)

SCRAPE_S = 10.0
"""Seconds for which the metrics of a finished job wait for a scrape."""


@dataclass(frozen=True)
class Options:
    """Settings of a coordinator process; see the options of `dbelief coordinator`."""

    job_file: Path
    overrides: tuple[str, ...]
    listen: str
    registry_url: str
    name: str | None
    metrics_listen: str | None
    page_listen: str | None
    resume: bool
    fresh: bool
    once: bool
    run_folder: Path | None
    ready_file: Path | None
    patience: float
    at_end: str
    on_signal: str
    pictures: bool

    def check(self) -> None:
        """Raise UserError for an error that would otherwise show only after a wait."""
        if self.ready_file is not None and not self.ready_file.absolute().parent.is_dir():
            raise UserError(f"--ready-file {self.ready_file}: there is no folder {self.ready_file.parent}")
        may_listen(self.listen)
        if self.on_signal == "leave" and self.registry_url == "memory:":
            raise UserError("--on-signal leave: with --registry memory: no other coordinator would know of the job")


def run(options: Options, interrupted: Event) -> int:
    """Run a job, or stand by until this coordinator is needed; the exit code.

    Raises
    ------
    UserError
        The job file or an option is wrong.
    RuntimeFailure
        The run could not continue. With `on_signal` "leave" its exit code says that the job is not over, where a signal
        or a registry that does not answer has ended this process.
    """
    try:
        return _run(options, interrupted)
    except DbeliefError as error:
        if options.on_signal == "leave" and (interrupted.is_set() or isinstance(error, Unavailable)):
            error.exit_code = UNFINISHED  # else a scheduler would end the job with this process
        raise


def _run(options: Options, interrupted: Event) -> int:
    """See `run`."""
    options.check()
    clock = SystemClock()
    job = load_job(options.job_file, parse_overrides(options.overrides))
    if job.delays is not None:
        raise JobError(f"{options.job_file}: delays: a job with delays has no coordinator; `dbelief train` runs it")
    for tracker in job.track:
        check_usable(tracker)
    with ExitStack() as stack:
        registry = open_registry(options.registry_url, clock)
        stack.callback(registry.close)
        with _standby_health(options.listen):
            _wait_for_registry(registry, job.name, options.patience, clock, interrupted)
        metrics = Metrics("coordinator", standing_by=True)
        metrics.leading.set(0)
        stack.callback(metrics.close)
        metrics.serve(options.metrics_listen)
        owner = options.name or process_name()
        with _standby_health(options.listen):
            leadership = LeaderLease.acquire(registry, job.name, owner, clock, interrupted)
        if leadership is None:
            raise Interrupted(f"stopped while standing by for job {job.name}")
        stack.callback(leadership.release)
        before = outcome(leadership.read_state()) if options.once else ""
        if before:
            log.info(f"job {job.name} has already ended ({before}), and runs once only")
            if options.at_end == "wait":
                with closing(Server(options.listen, lambda _: None)):  # serves health checks, and leads nothing
                    interrupted.wait()
            return 0
        return _run_as_leader(options, job, owner, leadership, metrics, clock, interrupted)


def _run_as_leader(
    options: Options, job: Job, owner: str, leadership: LeaderLease, metrics: Metrics, clock: Clock, interrupted: Event
) -> int:
    """Lead the job, to its end or until this coordinator is requested to leave it; the exit code."""
    freeze()
    with ExitStack() as stack:
        page = _serve_page(options.page_listen, stack)
        check_free(options.listen)  # before the run folder is touched
        # Only the leader may touch the run folder: another coordinator may be writing into it.
        place = place_of(job, owner)
        stack.callback(place.release)
        begun = _begin(options, job, place, leadership, clock, interrupted)
        writing = stack.enter_context(place.writing(begun.folder, begun.machine.run_id, leadership.lose))
        sweep(begun.folder)
        runner = EventLoop(
            begun.machine,
            begun.folder,
            leadership,
            metrics,
            clock,
            begun.began_wall_s,
            options.pictures,
            place.shown(begun.folder),
            place.sets(begun.folder),
            writing.confirm,
            place.moved,
        )
        service = CoordinatorService(runner)
        contract = wire.DESCRIPTOR.services_by_name["Coordinator"]
        server = Server(options.listen, lambda s: stubs.add_CoordinatorServicer_to_server(service, s), contract)
        stack.callback(server.close)
        page.tell = lambda: to_dict(build_status(runner, wire.StatusRequest(curves=True)))
        set_context(role="coordinator", job=job.name, step=lambda: begun.machine.progress.samples)
        log.info(
            f"coordinator of job {job.name} on {server.address}, leader epoch {leadership.epoch}, "
            f"run folder {runner.where}"
        )
        if begun.machine.state is not State.CLOSING:
            set_aside(begun.folder, keep=bool(begun.machine.trained))
        stack.enter_context(found_at(begun.folder, server.address, job))
        if options.ready_file is not None:
            write_whole(options.ready_file, server.address.encode())
        with tracking(job, begun.folder):
            state = runner.run(interrupted, options.on_signal == "leave")
        writing.finish()
        if state not in (State.DONE, State.FAILED):
            log.info(f"leaving job {job.name} ({state.value}) to the next coordinator")
        else:
            log.info(f"job {job.name} {state.value}: {begun.machine.outcome}")
            if runner.unwritten is not None:
                raise runner.unwritten
            if options.at_end == "wait":
                interrupted.wait()
            else:
                metrics.wait_for_scrape(SCRAPE_S)
    if options.run_folder is None:
        place.discard(begun.folder)
    return _exit_code(state, bool(begun.machine.shutdown.failures))


def _exit_code(state: State, unevaluated: bool) -> int:
    if state is State.FAILED:
        return RuntimeFailure.exit_code
    if state is not State.DONE:
        return UNFINISHED
    return EvaluationFailed.exit_code if unevaluated else 0


def _begin(
    options: Options, job: Job, place: RunPlace, leadership: LeaderLease, clock: Clock, interrupted: Event
) -> Bootstrapped:
    """Start the job, or continue it; where the registry has lost it, once its former leader has noticed that."""
    patience_s = 0.0 if options.registry_url == "memory:" else 2 * leader_lease.LEASE_TTL_S
    until_s = clock.now() + patience_s
    while True:
        try:
            stored = leadership.read_state()
            return start(job, place, stored, options.run_folder, options.resume, options.fresh, clock.now())
        except RunInProgress as error:
            if clock.now() >= until_s or interrupted.is_set():
                raise
            log.debug(f"{error}; waiting for its end, for up to {patience_s:g} s")
            clock.wait(interrupted, leader_lease.LEASE_TTL_S / 20)


def _serve_page(listen: str | None, stack: ExitStack) -> StatusPage:
    """The status page, served until the stack closes, where an address is given."""
    credentials = current()
    page = StatusPage(credentials)
    if listen is not None:
        server = WebServer(listen, page, "the status page", credentials.web_context() if credentials else None)
        stack.callback(server.close)
        log.info(f"status page on {server.url}")
    return page


@contextmanager
def _standby_health(listen: str) -> Iterator[None]:
    """Serve health checks, on loopback alone, until this process leads.

    A client that looks for the leader must not reach this process. Only for a listen address that means all addresses
    (as in a container); elsewhere it is not needed.
    """
    with ExitStack() as stack:
        if is_every_address(listen):
            with suppress(UserError):  # another process on this host has that port, for example the leader
                stack.callback(Server(f"127.0.0.1:{host_and_port(listen)[1]}", lambda _: None).close, 0.0)
        yield


def _wait_for_registry(registry: Registry, job: str, patience_s: float, clock: Clock, interrupted: Event) -> None:
    """Wait for a registry that was started at the same time, and may become available later."""
    until_s = clock.now() + patience_s
    while True:
        try:
            registry.holder(job)
            return
        except Unavailable as error:
            if clock.now() >= until_s or interrupted.is_set():
                raise
            log.warning(f"{error}; waiting for it, for up to {patience_s:g} s")
