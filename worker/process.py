"""From a process to the ranks in it, each with its life: one replica of a job on as many ranks as its grid has."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from threadpoolctl import threadpool_limits

from dbelief.errors import Mistake
from dbelief.partition import Grid
from dbelief.process.console import announce, host_and_port, on_signals
from dbelief.process.log import known
from dbelief.rpc import coordination_pb2 as wire
from dbelief.rpc.client.job_wait import wait_for_job
from dbelief.rpc.server.server import is_every_address, own_host
from dbelief.security import current, may_listen
from dbelief.telemetry.gpu import devices
from dbelief.telemetry.metrics import Metrics
from dbelief.training.session import Session, Task

from .comm import Comm
from .comm.mpi import MpiEngine
from .comm.nccl import NcclEngine
from .comm.threads import run_ranks
from .partition import partitioned
from .pipeline.delayed_model import Slowed
from .rendezvous import Meeting
from .replica import Replica

MARGIN_S = 30.0
"""What a rank bears beyond the longest wait that another one may have for shards or the coordinator."""


@dataclass(frozen=True)
class Options:
    """How a replica is to run here; see the options of `dbelief worker`."""

    threads: int | None = None
    record: Path | None = None
    number: int | None = None
    name: str | None = None
    compute_wait_s: float = 0.0
    ranks: int | None = None
    listen: str | None = None
    advertise: str | None = None
    shared_memory: bool = True


def processes() -> Comm:
    """The processes of mpiexec as ranks: made before anything that may fail, for only then can one tell the others."""
    return Comm(MpiEngine())


def wait(address: str, another: bool = False) -> bool:
    """Wait until there is a job, or another job, at `host:port`; False where this process is asked to end before."""
    announce(f"waiting for a job at {address}")
    with on_signals() as interrupted:
        return wait_for_job(address, interrupted, another)


def live(task: Task, options: Options, metrics: Metrics, comm: Comm | None = None) -> bool:
    """Train one replica until the job is over, or this process is asked to end; whether it was the job that ended.

    Parameters
    ----------
    comm
        Of the processes that are its ranks; None: they are threads of this one.

    Raises
    ------
    Mistake
        The ranks are not as many as the job's grid has.
    Failure
        What ended it; of several ranks, what ended the first that failed.
    """
    wanted, deadlines = math.prod(task.job.grid), task.job.deadlines
    # Another rank may wait for a push and, after it, for a pull: twice `progress_s` each.
    longest_s = max(deadlines.join_s, 4 * deadlines.progress_s) + MARGIN_S

    asked = threading.Event()

    def rank(comm: Comm) -> None:
        task.backend.take_device(comm.rank)
        if _live(task, options, metrics, comm):
            asked.set()

    _check(options.ranks or wanted, wanted, f"--ranks {wanted}, or leave it out")
    if comm is None:
        run_ranks(wanted, rank, longest_s, xp=task.backend.xp)
        return not asked.is_set()
    comm.deadline_s = longest_s
    _check(comm.size, wanted, f"mpiexec -n {wanted}")
    if task.backend.name == "numpy" or comm.size == 1:
        rank(comm)
    else:
        task.backend.take_device(comm.rank)  # NCCL begins on it
        with Comm(NcclEngine(comm.engine), longest_s) as between_devices:
            rank(between_devices)
    return not asked.is_set()


def _check(ranks: int, wanted: int, advice: str) -> None:
    if ranks != wanted:
        raise Mistake(f"{ranks} ranks, and the job's grid has {wanted}: {advice}")


def _live(task: Task, options: Options, metrics: Metrics, comm: Comm) -> bool:
    """One rank's life, from joining to leaving; whether it was asked to end."""
    # Until there is a lease to finish, a signal simply ends this process.
    meeting = _meeting(task, options)
    session = Session.open(
        task,
        wire.ROLE_REPLICA,
        options.number,
        options.name,
        comm,
        meeting.address if meeting else "",
        options.shared_memory,
    )
    if meeting is not None:
        session.member.when_ended, meeting.run_id = meeting.over, session.member.run_id
    reason, tell = "failed", _teller(comm)
    _tell(metrics, session, comm)
    if comm.rank == 0:
        known(role="worker", job=session.job.name, id=session.member.id, step=lambda: session.next_sequence() - 1)
    try:
        who = f"replica {session.member.id} of job {session.job.name}"
        ranks = f" and {comm.size} ranks" if comm.size > 1 else ""
        tell(f"{who}, on {session.backend.name}{ranks}")
        model = partitioned(session.model, comm, Grid.of(task.job.grid)) if comm.size > 1 else session.model
        session.model = model  # of a whole one that was cut nothing stays
        threads = task.job.threads if options.threads is None else options.threads
        with on_signals() as interrupted, threadpool_limits(threads):
            if options.compute_wait_s:
                model = Slowed(model, options.compute_wait_s)
            replica = Replica(session, model, metrics, interrupted, meeting)
            try:
                reason = replica.run()
            finally:
                replica.write_record(options.record)
        tell(f"{who} ends: {reason}")
        return interrupted.is_set()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        session.close(reason)


def _tell(metrics: Metrics, session: Session, comm: Comm) -> None:
    """What scrapes read of a session and of the process's devices."""
    metrics.follow("retries_total", lambda: session.client.retries, to="coordinator")
    metrics.follow("retries_total", lambda: session.parameters.retries, to="ps")
    for device in devices(session.backend) if comm.rank == 0 else ():
        number = str(device.number)
        metrics.gpu_busy_fraction.labels(number).set_function(device.busy_fraction)
        metrics.gpu_memory_bytes.labels(number, "used").set_function(device.used_bytes)
        metrics.gpu_memory_bytes.labels(number, "total").set_function(device.total_bytes)
        metrics.gpu_memory_bytes.labels(number, "pool").set_function(device.pool_bytes)


def _meeting(task: Task, options: Options) -> Meeting | None:
    """Where this process meets the others of a group; of a job without groups none.

    Raises
    ------
    Mistake
        Nobody can listen there.
    """
    if not task.job.strategy.grouped:
        return None
    host, port = host_and_port(options.listen) if options.listen else (_own(task.address), 0)
    known_as = options.advertise or ""
    if known_as:
        host_and_port(known_as)
    elif is_every_address(f"{host}:{port}"):
        known_as = f"{_own(task.address)}:0"
    may_listen(f"{host}:{port}")
    try:
        meeting = Meeting(host, port, known_as, task.job.name, task.job.deadlines.progress_s, current())
    except OSError as error:
        raise Mistake(f"cannot listen on {host}:{port} for the other workers: {error.strerror or error}") from error
    announce(f"other workers reach it on {meeting.address}")
    return meeting


def _own(peer: str) -> str:
    """This host on the way to `peer`, as an address has it: with colons in brackets."""
    host = own_host(peer)
    return f"[{host}]" if ":" in host else host


def _teller(comm: Comm) -> Callable[[str], None]:
    """Says things once for all ranks."""
    return announce if comm.rank == 0 else lambda _: None
