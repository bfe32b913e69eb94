"""The programs as simulated processes: their real `run` functions, with the operating system's parts replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import dbelief
from coordinator import process as coordinator
from dbelief.errors import RuntimeFailure, Unavailable
from dbelief.process.runtime import Event, runtime
from dbelief.telemetry.metrics import Metrics
from dbelief.training.session import JobContext
from ps_server import process as ps_server
from worker import process as worker

from .scheduler import Process, Scheduler

COORDINATOR = "127.0.0.1:7070"
PATIENCE_S = 60.0


@contextmanager
def operating_system(scheduler: Scheduler, registry: Any) -> Iterator[None]:
    """Replace what the programs take from the operating system past the seams: signals, ports, cores, tokens."""

    def interrupts() -> Any:
        assert scheduler.current is not None
        return nullcontext(interrupt_of(scheduler.current.process))

    with ExitStack() as stack:
        for module in (ps_server, worker):
            stack.enter_context(mock.patch.object(module, "interrupt_event", interrupts))
        for name, replacement in {
            "coordinator.process.open_registry": lambda *_: registry,
            "coordinator.process.check_free": lambda _: None,
            "coordinator.process.freeze": lambda: None,
            "ps_server.controller.freeze": lambda: None,
            "ps_server.controller.collect": lambda: None,
            "worker.process.threadpool_limits": lambda _: nullcontext(),
            "os.sched_getaffinity": lambda _: {0, 1},
            "dbelief.rpc.channel.loopback_address": lambda _: None,
            "dbelief.rpc.server.server.must_show": lambda _: None,
        }.items():
            stack.enter_context(mock.patch(name, replacement))
        yield


def interrupt_of(process: Process) -> Event:
    """The event that a signal to the process sets."""
    if process.interrupt is None:
        process.interrupt = runtime.event()
    return process.interrupt


def run_coordinator(process: Process, job: Path, folder: Path) -> None:
    """`dbelief coordinator`, as one of two."""
    options = coordinator.Options(
        job_file=job,
        overrides=(),
        listen=COORDINATOR,
        registry_url="simulated",
        name=f"{process.name}#{process.number}",
        metrics_listen=None,
        page_listen=None,
        resume=False,
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


def run_shard(process: Process) -> None:
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
            shared_memory=False,
        )
    )


def run_worker(process: Process) -> None:
    """`dbelief worker`."""
    with closing(Metrics("worker")) as metrics:
        task = JobContext.fetch(COORDINATOR, PATIENCE_S)
        worker.run(task, worker.Options(name=process.name, shared_memory=False), metrics)
