"""A whole job in one process over real gRPC: a coordinator, its shards and its replicas as threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator.core.states import State
from coordinator.rpc.servicer import CoordinatorService
from coordinator.runtime.bootstrap import create_machine
from coordinator.runtime.event_loop import EventLoop
from coordinator.runtime.leader_lease import LeaderLease
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.job.load import parse_job
from dbelief.process.clock import SystemClock
from dbelief.registry import MemoryRegistry
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MembershipClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import coordination_pb2_grpc as stubs
from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from dbelief.training.session import JobContext
from ps_server.rpc.servicer import ShardService
from worker.process import Options, run


def whole_job(
    text: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    interceptor: Callable[[], grpc.ServerInterceptor] | None = None,
    replica: Callable[[str, Path], object] | None = None,
) -> Path:
    """Run a job to its good end and give its run folder; every server may get an interceptor of its own.

    `replica`: what a replica runs, of the coordinator's address and `folder`; None: the worker.
    """
    job, clock, make = parse_job(text, folder, "job"), SystemClock(), grpc.server
    run_folder = folder / "run"
    (run_folder / "snapshots").mkdir(parents=True)
    with ExitStack() as stack, monkeypatch.context() as patch:

        def with_it(pool: ThreadPoolExecutor, interceptors: Sequence[grpc.ServerInterceptor], **options: Any) -> Any:
            return make(pool, interceptors=[*interceptors, *([interceptor()] if interceptor else [])], **options)

        patch.setattr(grpc, "server", with_it)
        leadership = LeaderLease.acquire(MemoryRegistry(clock), job.name, "test", clock, threading.Event())
        assert leadership is not None
        stack.callback(leadership.release)
        machine, metrics = create_machine(job, LocalSets(run_folder / "snapshots"), False), Metrics("coordinator")
        runner = EventLoop(machine, run_folder, leadership, metrics, clock, pictures=False)
        service = CoordinatorService(runner)
        server = Server("127.0.0.1:0", lambda s: stubs.add_CoordinatorServicer_to_server(service, s))
        stack.callback(server.close)
        failed = threading.Event()
        programs: list[Callable[[], object]] = [functools.partial(runner.run, failed)]
        programs += [functools.partial(_shard, server.address, job.name)] * job.shards
        programs += [functools.partial(replica or _replica, server.address, folder)] * job.replicas
        threads = [threading.Thread(target=_setting, args=(failed, program)) for program in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not failed.is_set(), runner._machine.reason
        assert runner._machine.state is State.DONE, runner._machine.reason
    return run_folder


def _setting(failed: threading.Event, program: Callable[[], object]) -> None:
    """Run a program, and set the event at an error: the job ends, and does not wait for what has failed."""
    try:
        program()
    except BaseException:
        failed.set()
        raise


def _shard(address: str, job: str) -> None:
    with ExitStack() as stack:
        service = ShardService(Metrics("ps"))
        server = Server("127.0.0.1:0", service.register)
        stack.callback(server.close)
        client = CoordinatorClient(address)
        stack.callback(client.close)
        member = MembershipClient(client, wire.ROLE_SHARD, job, address=server.address)
        service.controller.index = member.id
        assert service.controller.stopped.wait(300)
        member.leave("the job is over")


def _replica(address: str, folder: Path) -> None:
    with closing(Metrics("worker")) as metrics:
        run(JobContext.fetch(address, 10.0, folder), Options(), metrics)
