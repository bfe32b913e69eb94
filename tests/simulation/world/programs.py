"""The programs as simulated processes: their real `run` functions, with the operating system's parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, ExitStack, closing, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml

import dbelief
from coordinator import process as coordinator
from dbelief.errors import DbeliefError
from dbelief.process.runtime import Event, runtime
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.claim import Claim
from dbelief.script.membership import Membership
from dbelief.script.settings import ScriptSettings
from dbelief.telemetry.metrics import Metrics
from dbelief.training.session import JobContext
from ps_server import process as ps_server
from tests.simulation.models.jobs import LEASE_TTL_S
from tests.simulation.models.marks import LENGTH, PROCESSES, ROWS, marker
from tests.simulation.models.row_script import RowScript
from tests.simulation.models.rows import SimulatedTable
from tests.simulation.plan.plan import Ways
from worker import process as worker

from .groups import Groups, SimulatedRendezvous
from .scheduler import Process, Scheduler

COORDINATOR = "127.0.0.1:7070"
PATIENCE_S = 12.0
"""Time that members go on without an answer: longer than most failovers take here, and shorter than many runs."""
SLOWER = {
    "coordinator.runtime.event_loop.TICK_S": 0.2,
    "worker.replica.LONGEST_WAIT_S": 0.2,
}
"""Intervals of what programs repeat while nothing changes: twice as long as in production, where a job of 200 pushes
does not last for as many of them."""
READ_S = 0.05
"""Pause between the pulls of a program that only reads."""


class _SameState(ContextDecorator):
    """Leaves numpy's handling of floating-point errors as it is."""

    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None: ...


_same_state = _SameState()


@contextmanager
def operating_system(scheduler: Scheduler, registry: Any, groups: Groups, report_s: float) -> Iterator[None]:
    """Replace what the programs take from the operating system past the seams: signals, ports, cores, tokens.

    `report_s`: interval at which workers report their progress.
    """

    def interrupts() -> Any:
        assert scheduler.current is not None
        return nullcontext(interrupt_of(scheduler.current.process))

    claim = Claim.__init__

    def held_by_process(self: Claim, *arguments: Any) -> None:
        claim(self, *arguments)
        if scheduler.current is not None:
            scheduler.current.process.on_end.append(self.release)  # as the kernel does; a killed one does not unwind

    with ExitStack() as stack:
        for module in (ps_server, worker):
            stack.enter_context(mock.patch.object(module, "interrupt_event", interrupts))
        stack.enter_context(mock.patch.object(Claim, "__init__", held_by_process))
        for name, replacement in {
            "coordinator.process.open_registry": lambda *_: registry,
            "coordinator.process.check_free": lambda _: None,
            "coordinator.process.freeze": lambda: None,
            "coordinator.runtime.leader_lease.LEASE_TTL_S": LEASE_TTL_S,
            "dbelief.rpc.client.coordinator_client.PATIENCE_S": PATIENCE_S,
            "coordinator.runtime.leader_lease._STANDBY_RETRY_S": LEASE_TTL_S / 10,
            "ps_server.controller.freeze": lambda: None,
            "ps_server.controller.collect": lambda: None,
            "coordinator.runtime.executor.collect": lambda: None,
            "dbelief.rpc.channel.why_not": lambda _: "",
            "dbelief.telemetry.metrics.ProcessCollector": lambda registry: None,
            "worker.process.threadpool_limits": lambda _: nullcontext(),
            "worker.process.Rendezvous": lambda *words: SimulatedRendezvous(groups, words[4]),
            "os.sched_getaffinity": lambda _: {0, 1},
            "dbelief.rpc.channel.loopback_address": lambda _: None,
            "dbelief.rpc.server.server.must_show": lambda _: None,
            "dbelief.job.document.yaml_document.yaml.compose": lru_cache(maxsize=8)(yaml.compose),  # read by each
            "numpy.errstate": lambda **_: _same_state,  # it takes longer than what it surrounds here
            "worker.progress_reporter.REPORT_EVERY_S": report_s,
            **SLOWER,
        }.items():
            stack.enter_context(mock.patch(name, replacement))
        yield


def interrupt_of(process: Process) -> Event:
    """The event that a signal to the process sets."""
    if process.interrupt is None:
        process.interrupt = runtime.event()
    event: Event = process.interrupt
    return event


def run_coordinator(process: Process, job: Path, folder: Path, resumes: Callable[[], bool] = lambda: False) -> None:
    """`dbelief coordinator`, as one of two; with `--resume` where `resumes()` says so at its start."""
    options = coordinator.Options(
        job_file=job,
        overrides=(),
        listen=COORDINATOR,
        registry_url="simulated",
        name=process.name,
        metrics_listen=None,
        page_listen=None,
        resume=resumes(),
        fresh=False,
        once=True,
        run_folder=folder,
        ready_file=None,
        patience=PATIENCE_S,
        at_end="exit",
        on_signal="leave",
        pictures=False,
    )
    coordinator.run(options, interrupt_of(process))


def run_shard(process: Process, ways: Ways) -> None:
    """`dbelief ps`."""
    ps_server.serve(
        ps_server.Options(
            coordinator=COORDINATOR,
            listen="127.0.0.1:0",
            advertise=None,
            metrics_listen=None,
            record=None,
            number=None,
            name=process.name,
            patience=PATIENCE_S,
            at_end="exit",
            shared_memory=ways.shared_memory,
            direct_streams=ways.direct_streams,
        )
    )


def run_worker(process: Process, ways: Ways) -> None:
    """`dbelief worker`."""
    with closing(Metrics("worker")) as metrics:
        task = JobContext.fetch(COORDINATOR, PATIENCE_S)
        worker.run(task, worker.Options(name=process.name, **ways._asdict()), metrics)


def run_script(process: Process, ways: Ways, tables: tuple[SimulatedTable, ...]) -> None:
    """A script with rows of tables, as `dbelief worker -- SCRIPT` starts it."""
    task = JobContext.fetch(COORDINATOR, PATIENCE_S)
    settings = ScriptSettings(COORDINATOR, process.name, patience_s=PATIENCE_S, **ways._asdict())
    member = Membership(task, settings)
    try:
        RowScript(member, tables, interrupt_of(process)).run()
    except Exception as error:
        member.close(f"{type(error).__name__}: {error}", failed=True)
        raise
    member.close("the script ended", failed=False)


def run_client(process: Process, ways: Ways) -> None:
    """A program with a loop of its own."""
    batch = 4
    with dbelief.connect(COORDINATOR, PATIENCE_S, *ways) as job:
        while not job.over:
            job.pull()
            marker.compute(np.empty(0, int))
            gradient = np.zeros((ROWS, LENGTH), np.float32)
            gradient[:, PROCESSES + process.number] = batch
            job.push({"marks": gradient}, samples=batch, loss=1.0)


def run_reader(process: Process, ways: Ways) -> None:
    """A program that only reads the parameters."""
    with dbelief.connect(COORDINATOR, PATIENCE_S, *ways) as job:
        while not job.over:
            job.pull()
            runtime.sleep(READ_S)


def run_scale(shards: int) -> None:
    """`dbelief scale ps`, once the job trains; without effect where it does not answer."""
    with closing(CoordinatorClient(COORDINATOR, 0.0)) as client, suppress(DbeliefError):
        client.call("Scale", wire.ScaleRequest(shards=shards))
