"""`dbelief worker`: one model replica of a job."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dbelief.console import announce, exits_cleanly, on_signals, serve_metrics
from dbelief.rpc.settings import prepare_process

if TYPE_CHECKING:
    from dbelief.metrics import Metrics
    from dbelief.session import Session


@click.command("worker")
@click.option("--coordinator", required=True, metavar="HOST:PORT", help="Where the job's coordinator listens.")
@click.option(
    "--threads", type=click.IntRange(1), default=None, help="BLAS threads of this replica; default: as the job says."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=None,
    help="Where the job's relative paths start on this machine; default: as on the coordinator's.",
)
@click.option("--metrics", "metrics_listen", default=None, help="Address for Prometheus, host:port; port 0: any free.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for the log for a replay.",
)
@click.option(
    "--number", type=click.IntRange(0), default=None, help="The replica number to ask for; default: any free."
)
@click.option(
    "--name", default=None, help="What this replica is called, however often it is started: its earlier life is over."
)
@click.option(
    "--patience", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait for the coordinator."
)
@click.option(
    "--portion-wait",
    "portion_wait_s",
    type=click.FloatRange(0),
    default=0.0,
    hidden=True,
    envvar="DBELIEF_PORTION_WAIT",
    help="For tests of stragglers: seconds that every portion of a batch method takes longer.",
)
def command(
    coordinator: str,
    threads: int | None,
    folder: Path | None,
    metrics_listen: str | None,
    record: Path | None,
    number: int | None,
    name: str | None,
    patience: float,
    portion_wait_s: float,
) -> None:
    """Train one replica of a job's model: fetch parameters, compute gradients on leased data, push them."""
    prepare_process()
    with exits_cleanly():
        _run(coordinator, threads, folder, metrics_listen, record, number, name, patience, portion_wait_s)


def _run(
    coordinator: str,
    threads: int | None,
    folder: Path | None,
    metrics_listen: str | None,
    record: Path | None,
    number: int | None,
    name: str | None,
    patience: float,
    portion_wait_s: float,
) -> None:
    from dbelief.metrics import Metrics
    from dbelief.rpc import coordination_pb2 as wire
    from dbelief.session import Session

    with closing(Metrics("worker")) as metrics:
        serve_metrics(metrics.serve, metrics_listen)
        announce(f"joining the job at {coordinator}, for up to {patience:g} s; then waiting until it trains")
        # Until there is a lease to finish, a signal simply ends this process.
        session = Session.open(coordinator, wire.ROLE_REPLICA, patience, folder, number, name)
        _train(session, metrics, threads, record, portion_wait_s)


def _train(session: Session, metrics: Metrics, threads: int | None, record: Path | None, portion_wait_s: float) -> None:
    """Train until the job is over, or this process is asked to end; then leave."""
    from threadpoolctl import threadpool_limits

    from .replica import Replica

    reason = "failed"
    try:
        announce(f"replica {session.member.id} of job {session.job.name}, on {session.backend.name}")
        with on_signals() as interrupted, threadpool_limits(session.job.threads if threads is None else threads):
            replica = Replica(session, metrics, interrupted, portion_wait_s)
            try:
                reason = replica.run()
            finally:
                replica.write_record(record)
        announce(f"replica {session.member.id} of job {session.job.name} ends: {reason}")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        session.close(reason)
