"""What others wait for comes before its turn, and while shards are busy with files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.actions import Fence, StandAlone, TakeSnapshot
from coordinator.actor import Actor
from coordinator.job import JobMachine
from coordinator.shards import Shards
from dbelief.clock import SystemClock
from dbelief.rpc import parameters_pb2 as wire
from ps_server.service import ShardService
from tests.ps_server.servers import wait_until

from .test_shards import Cluster, cluster

pytestmark = pytest.mark.processes


class Machine:
    """As much of a job's machine as these actions ask for."""

    def __init__(self, cluster: Cluster) -> None:
        self.placement, self.commit_due, self.over = cluster.placement, False, False
        self.chains = SimpleNamespace(stands=lambda action: True)
        self.recovery = SimpleNamespace(away=set())
        self.job = SimpleNamespace(name="programs", snapshots=SimpleNamespace(keep=2))
        self.done: list[str] = []

    def set_state(self) -> dict[str, Any]:
        return {}

    def snapshot_taken(self, set_id: str, now_s: float) -> None:
        self.done.append(set_id)

    def fenced(self, number: int, *rest: object) -> None:
        self.done.append(f"fenced {number}")


@contextmanager
def actor(shards: Shards, machine: Machine, folder: Path) -> Iterator[Actor]:
    @contextmanager
    def step() -> Iterator[tuple[JobMachine, float]]:
        yield cast("JobMachine", machine), 0.0

    running = Actor(step, shards, folder, lambda note: None, lambda: None, SystemClock())
    running.start()
    try:
        yield running
    finally:
        running.end()


def held(service: ShardService, busy: threading.Event, free: threading.Event) -> None:
    """Its next snapshot waits until it may go on."""
    write = service.life.snapshot

    def waits(request: wire.SnapshotRequest) -> wire.SnapshotReply:
        busy.set()
        assert free.wait(30.0)
        return write(request)

    service.life.snapshot = waits  # type: ignore[method-assign]


def test_a_shard_hears_that_it_stands_alone_while_another_writes_a_set(tmp_path: Path) -> None:
    """A disk that takes minutes does not keep those who push to some other shard waiting."""
    services: list[ShardService] = []
    busy, free = threading.Event(), threading.Event()
    with cluster(tmp_path, 2, prepare=services.append) as here:
        machine = Machine(here)
        held(services[1], busy, free)
        with actor(here.shards, machine, tmp_path) as running:
            running.put(TakeSnapshot("000001"))
            assert busy.wait(30.0)
            running.put(Fence(3, 9))
            running.put(StandAlone(0, 5))
            wait_until(lambda: services[0].life.chain.epoch == 5)
            assert machine.done == []
            free.set()
            wait_until(lambda: len(machine.done) == 2)
    assert machine.done == ["000001", "fenced 3"]
