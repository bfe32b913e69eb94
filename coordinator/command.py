"""`dbelief coordinator JOB`: runs one job."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import click

from dbelief.console import announce, exits_cleanly, on_signals, write_address
from dbelief.rpc.settings import limit_threads, prepare_process


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
@click.option("--resume", is_flag=True, help="Go on from the newest complete snapshot set of the run folder.")
@click.option("--run-folder", type=click.Path(path_type=Path), default=None, help="A run folder made before.")
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
    from dbelief.report.folder import prepare_folder
    from dbelief.rpc import coordination_pb2_grpc as stubs
    from dbelief.rpc.serving import Server

    from .runner import LEASE_TTL_S, Runner
    from .service import CoordinatorService
    from .start import make_machine
    from .states import State

    clock = SystemClock()
    job = load_job(job_file, dict(item.partition("=")[::2] for item in overrides))
    folder = run_folder or prepare_folder(job, resume)
    registry = open_registry(registry_url, clock)
    owner = f"{socket.gethostname()}:{os.getpid()}"
    epoch = registry.acquire(job.name, owner, LEASE_TTL_S)
    if epoch is None:
        holder = registry.holder(job.name)
        who = f"{holder[0]}, for {holder[1]:.0f} s" if holder else "somebody"
        raise Refused(f"job {job.name!r} is led by {who}; end that coordinator first, or wait")
    metrics = Metrics("coordinator")
    machine = make_machine(job, folder, resume)
    runner = Runner(machine, folder, registry, epoch, metrics, clock)
    service = CoordinatorService(runner)
    server = Server(listen, lambda s: stubs.add_CoordinatorServicer_to_server(service, s))
    try:
        if metrics_listen is not None:
            host, _, port = metrics_listen.rpartition(":")
            announce(f"metrics on http://{host}:{metrics.serve(host, int(port))}/metrics")
        announce(f"coordinator of job {job.name} on {server.address}, leader epoch {epoch}, run folder {folder}")
        if ready_file is not None:
            write_address(ready_file, server.address)
        state = runner.run(interrupted)
        announce(f"job {job.name} {state.value}: {machine.reason}")
    finally:
        server.close()
        metrics.close()
        registry.close()
    return 0 if state is State.DONE else 1
