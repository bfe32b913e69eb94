"""One replica of a job, run on the ranks of its grid: threads of this process or processes of mpiexec."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from threadpoolctl import threadpool_limits

from dbelief.errors import UserError
from dbelief.partition import Grid
from dbelief.process.log import set_context
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import host_and_port, interrupt_event
from dbelief.process.time_slice import request_slice
from dbelief.rpc.client.job_wait import wait_for_job
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.server.server import is_every_address, own_host
from dbelief.security import current, may_listen
from dbelief.telemetry.gpu import devices
from dbelief.telemetry.metrics import Metrics
from dbelief.training.session import JobContext, Session

from .comm import Communicator
from .comm.mpi import MpiEngine
from .comm.nccl import NcclEngine
from .comm.threads import run_ranks
from .partition import build_partitioned
from .pipeline.delayed_model import DelayedModel
from .rendezvous import Rendezvous
from .replica import Replica

log = logging.getLogger(__name__)

RANK_TIMEOUT_MARGIN_S = 30.0
"""Seconds added to the longest time that another rank may wait for shards or the coordinator: a rank's own timeout."""

SLICE_S = 0.03
"""Time slice of a replica of one rank, in seconds, where the kernel's is at most 3 ms: where replicas share a core, a
change from one to another costs the contents of its caches. Ranks wait for messages of each other, and keep theirs."""


@dataclass(frozen=True)
class Options:
    """Settings of this replica; see the options of `dbelief worker`."""

    threads: int | None = None
    record: Path | None = None
    number: int | None = None
    name: str | None = None
    compute_wait_s: float = 0.0
    ranks: int | None = None
    listen: str | None = None
    advertise: str | None = None
    shared_memory: bool = True
    direct_streams: bool = True


def processes() -> Communicator:
    """Communicator of the mpiexec processes; create it before anything that may fail, to notify all ranks."""
    return Communicator(MpiEngine())


def wait(address: str, another: bool = False) -> bool:
    """Wait for a job, or another job, at `host:port`; False if this process is interrupted before."""
    log.info(f"waiting for a job at {address}")
    with interrupt_event() as interrupted:
        return wait_for_job(address, interrupted, another)


def run(task: JobContext, options: Options, metrics: Metrics, comm: Communicator | None = None) -> bool:
    """Train one replica until the job ends or this process is interrupted; return whether the job ended.

    Parameters
    ----------
    comm
        Communicator of the processes that are its ranks; None: the ranks are threads of this process.

    Raises
    ------
    UserError
        The number of ranks differs from that of the job's grid.
    RuntimeFailure
        The failure of the replica; with several ranks, that of the rank that failed first.
    """
    wanted, deadlines = math.prod(task.job.grid), task.job.deadlines
    # Another rank may wait for a push and then for a pull: twice `progress_s` each.
    longest_s = max(deadlines.join_s, 4 * deadlines.progress_s) + RANK_TIMEOUT_MARGIN_S

    interrupted = runtime.event()

    def rank(comm: Communicator) -> None:
        task.backend.bind_device(comm.rank)
        if _run_rank(task, options, metrics, comm):
            interrupted.set()

    _check(options.ranks or wanted, wanted, f"--ranks {wanted}, or leave it out")
    if comm is None:
        run_ranks(wanted, rank, longest_s, xp=task.backend.xp)
        return not interrupted.is_set()
    comm.deadline_s = longest_s
    _check(comm.size, wanted, f"mpiexec -n {wanted}")
    if task.backend.name == "numpy" or comm.size == 1:
        rank(comm)
    else:
        task.backend.bind_device(comm.rank)  # NCCL starts on this device
        with Communicator(NcclEngine(comm.engine), longest_s) as between_devices:
            rank(between_devices)
    return not interrupted.is_set()


def _check(ranks: int, wanted: int, advice: str) -> None:
    if ranks != wanted:
        raise UserError(f"{ranks} ranks, and the job's grid has {wanted}: {advice}")


def _run_rank(task: JobContext, options: Options, metrics: Metrics, comm: Communicator) -> bool:
    """Run one rank from joining to leaving; return whether it was interrupted."""
    # Before the first lease a signal ends this process immediately.
    rendezvous = _make_rendezvous(task, options)
    session = Session.open(
        task,
        wire.ROLE_REPLICA,
        options.number,
        options.name,
        comm,
        rendezvous.address if rendezvous else "",
        options.shared_memory,
        options.direct_streams,
    )
    if rendezvous is not None:
        session.member.when_ended, rendezvous.run_id = rendezvous.invalidate, session.member.run_id
    reason, failed, log = "failed", False, _log_on_rank0(comm)
    _export_metrics(metrics, session, comm)
    if comm.rank == 0:
        set_context(role="worker", job=session.job.name, id=session.member.id, step=lambda: session.next_sequence() - 1)
    try:
        who = f"replica {session.member.id} of job {session.job.name}"
        ranks = f" and {comm.size} ranks" if comm.size > 1 else ""
        log(f"{who}, on the {'CPU' if session.backend.name == 'numpy' else 'GPU'}{ranks}")
        assert session.model is not None, "a replica's model is the job's"
        model = build_partitioned(session.model, comm, Grid.of(task.job.grid)) if comm.size > 1 else session.model
        session.model = model  # frees the complete model after it was partitioned
        threads = task.job.threads if options.threads is None else options.threads
        if comm.size == 1:
            request_slice(SLICE_S)
        with interrupt_event() as interrupted, threadpool_limits(threads):
            if options.compute_wait_s:
                model = DelayedModel(model, options.compute_wait_s)
            replica = Replica(session, model, metrics, interrupted, rendezvous)
            try:
                reason = replica.run()
            finally:
                replica.write_record(options.record)
        log(f"{who} ends: {reason}")
        return interrupted.is_set()
    except Exception as error:
        reason, failed = f"{type(error).__name__}: {error}", True
        raise
    finally:
        session.close(reason, failed)


def _export_metrics(metrics: Metrics, session: Session, comm: Communicator) -> None:
    """Register the metrics callbacks of a session and of the process's devices."""
    metrics.add_callback("retries_total", lambda: session.client.retries, to="coordinator")
    metrics.add_callback("retries_total", lambda: session.parameters.retries, to="ps")
    for device in devices(session.backend) if comm.rank == 0 else ():
        number = str(device.number)
        metrics.gpu_busy_fraction.labels(number).set_function(device.busy_fraction)
        metrics.gpu_memory_bytes.labels(number, "used").set_function(device.used_bytes)
        metrics.gpu_memory_bytes.labels(number, "total").set_function(device.total_bytes)
        metrics.gpu_memory_bytes.labels(number, "pool").set_function(device.pool_bytes)


def _make_rendezvous(task: JobContext, options: Options) -> Rendezvous | None:
    """Rendezvous of this process with the other workers of a group; None for a job without groups.

    Raises
    ------
    UserError
        The address cannot be listened on.
    """
    if not task.job.strategy.grouped:
        return None
    host, port = host_and_port(options.listen) if options.listen else (_local_host(task.address), 0)
    known_as = options.advertise or ""
    if known_as:
        host_and_port(known_as)
    elif is_every_address(f"{host}:{port}"):
        known_as = f"{_local_host(task.address)}:0"
    may_listen(f"{host}:{port}")
    try:
        rendezvous = Rendezvous(host, port, known_as, task.job.name, task.job.deadlines.progress_s, current())
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port} for the other workers: {error.strerror or error}") from error
    log.info(f"other workers reach it on {rendezvous.address}")
    return rendezvous


def _local_host(peer: str) -> str:
    """This host's address on the route to `peer`; an IPv6 address in brackets."""
    host = own_host(peer)
    return f"[{host}]" if ":" in host else host


def _log_on_rank0(comm: Communicator) -> Callable[[str], None]:
    """Function that logs a message on rank 0 and ignores it on all other ranks."""
    return log.info if comm.rank == 0 else lambda _: None
