"""`dbelief ps`: one shard of a job's parameters."""

from __future__ import annotations

from pathlib import Path

import click

from dbelief.console import announce, exits_cleanly, on_signals, serve_metrics
from dbelief.rpc.settings import limit_threads, prepare_process


@click.command("ps")
@click.option("--coordinator", required=True, metavar="HOST:PORT", help="Where the job's coordinator listens.")
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="Address to listen on; port 0: any free.")
@click.option("--advertise", default=None, metavar="HOST:PORT", help="Address others reach it by; default: --listen.")
@click.option("--metrics", "metrics_listen", default=None, help="Address for Prometheus, host:port; port 0: any free.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Folder for the log of applied pushes.")
@click.option("--number", type=int, default=None, help="The shard number to ask for; default: any free.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds to wait for the coordinator.")
def command(
    coordinator: str,
    listen: str,
    advertise: str | None,
    metrics_listen: str | None,
    record: Path | None,
    number: int | None,
    patience: float,
) -> None:
    """Hold one shard of a job's parameters: keep its segments, apply pushes by the job's rule."""
    prepare_process()
    limit_threads(1)
    with exits_cleanly():
        _run(coordinator, listen, advertise, metrics_listen, record, number, patience)


def _run(
    coordinator: str,
    listen: str,
    advertise: str | None,
    metrics_listen: str | None,
    record: Path | None,
    number: int | None,
    patience: float,
) -> None:
    from dbelief.errors import Mistake, Refused
    from dbelief.metrics import Metrics
    from dbelief.rpc import coordination_pb2 as wire
    from dbelief.rpc.coordination import CoordinatorClient, Membership
    from dbelief.rpc.serving import Server

    from .record import Recorder
    from .service import ShardService

    if advertise is None and listen.rpartition(":")[0] in ("", "0.0.0.0", "[::]"):
        raise Mistake(f"--listen {listen} is no address that others reach it by: give --advertise HOST:PORT")
    metrics = Metrics("ps")
    recorder = Recorder()
    service = ShardService(metrics, record=recorder.note)
    server = Server(listen, service.register)
    client = CoordinatorClient(coordinator)
    try:
        serve_metrics(metrics.serve, metrics_listen)
        announce(f"joining the job at {coordinator}, for up to {patience:g} s")
        client.wait(patience)  # until there is something to leave, a signal simply ends this process
        job = client.status().job
        member = Membership(client, wire.ROLE_SHARD, job, address=advertise or server.address, wish=number)
        service.life.index = member.id
        announce(f"shard {member.id} of job {job} on {server.address}")
        with on_signals() as interrupted:
            while not service.life.stopped.wait(0.1) and not interrupted.is_set() and not member.over:
                pass
        if member.over and not service.life.stopped.is_set():
            service.life.stopped.wait(5.0)  # the coordinator says when its last snapshot and export are done
        recorder.write(record, member.id)
        lost = not service.life.stopped.is_set() and not interrupted.is_set() and member.lost
        reason = "signal" if interrupted.is_set() else "the job is over"
        member.leave(reason)
        if lost:
            raise Refused(f"shard {member.id} of job {job}: {lost}")
        announce(f"shard {member.id} of job {job} ends: {reason}")
    finally:
        client.close()
        server.close()
        metrics.close()
