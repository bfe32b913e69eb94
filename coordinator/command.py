"""`dbelief coordinator JOB`: runs one job."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dbelief.console import announce, exits_cleanly, on_signals, pairs, serve_metrics, write_address
from dbelief.errors import DbeliefError
from dbelief.rpc.settings import limit_threads, prepare_process

if TYPE_CHECKING:
    from dbelief.registry import Registry


@click.command("coordinator")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Replace a field of the job file.")
@click.option("--listen", default="127.0.0.1:7070", show_default=True, help="Address to listen on; port 0: any free.")
@click.option(
    "--registry",
    "registry_url",
    default="memory:",
    show_default=True,
    help="redis://, rediss:// or unix:// URL, where the job's state survives; memory: keeps it in this process.",
)
@click.option("--metrics", "metrics_listen", default=None, help="Address for Prometheus, host:port; port 0: any free.")
@click.option("--resume", is_flag=True, help="Go on from the newest whole snapshot set of the run folder.")
@click.option(
    "--run-folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    default=None,
    help="A run folder made before.",
)
@click.option("--ready-file", type=click.Path(path_type=Path), default=None, help="Write the address here once up.")
def command(
    job_file: Path,
    overrides: tuple[str, ...],
    listen: str,
    registry_url: str,
    metrics_listen: str | None,
    resume: bool,
    run_folder: Path | None,
    ready_file: Path | None,
) -> None:
    """Run the job that JOB describes: wait for its shards and replicas, train, evaluate, export, end."""
    prepare_process()
    limit_threads(1)
    with exits_cleanly(), on_signals() as interrupted:
        code = _run(
            job_file,
            overrides,
            listen,
            registry_url,
            metrics_listen,
            resume,
            run_folder,
            ready_file,
            interrupted,
        )
    raise SystemExit(code)


def _run(
    job_file: Path,
    overrides: tuple[str, ...],
    listen: str,
    registry_url: str,
    metrics_listen: str | None,
    resume: bool,
    run_folder: Path | None,
    ready_file: Path | None,
    interrupted: threading.Event,
) -> int:
    from dbelief.clock import SystemClock
    from dbelief.errors import Refused
    from dbelief.job import load_job
    from dbelief.metrics import Metrics
    from dbelief.registry import open_registry
    from dbelief.report.folder import held, prepare_folder
    from dbelief.rpc import coordination_pb2_grpc as stubs
    from dbelief.rpc.serving import Server

    from .runner import LEASE_TTL_S, Runner
    from .service import CoordinatorService
    from .start import make_machine
    from .states import State

    clock = SystemClock()
    job = load_job(job_file, pairs(overrides))
    with ExitStack() as stack:
        registry = open_registry(registry_url, clock)
        stack.callback(registry.close)
        owner = f"{socket.gethostname()}:{os.getpid()}"
        epoch = registry.acquire(job.name, owner, LEASE_TTL_S)
        if epoch is None:
            holder = registry.holder(job.name)
            who = f"{holder[0]}, for {holder[1]:.0f} s" if holder else "somebody"
            raise Refused(f"job {job.name!r} is led by {who}; end that coordinator first, or wait")
        stack.callback(_release, registry, job.name, epoch)
        # Only its leader may touch the run folder: another coordinator may be writing into it.
        folder = run_folder or prepare_folder(job, resume)
        stack.enter_context(held(folder))
        metrics = Metrics("coordinator")
        stack.callback(metrics.close)
        machine = make_machine(job, folder, resume)
        runner = Runner(machine, folder, registry, epoch, metrics, clock)
        service = CoordinatorService(runner)
        server = Server(listen, lambda s: stubs.add_CoordinatorServicer_to_server(service, s))
        stack.callback(server.close)
        serve_metrics(metrics.serve, metrics_listen)
        announce(f"coordinator of job {job.name} on {server.address}, leader epoch {epoch}, run folder {folder}")
        if ready_file is not None:
            write_address(ready_file, server.address)
        state = runner.run(interrupted)
        announce(f"job {job.name} {state.value}: {machine.reason}")
    return 0 if state is State.DONE else 1


def _release(registry: Registry, job: str, epoch: int) -> None:
    """Let another lead the job; where that cannot be told, the lease runs out by itself."""
    with suppress(DbeliefError):
        registry.release(job, epoch)
