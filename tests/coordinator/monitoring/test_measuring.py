"""Measurements that the coordinator takes of its own job for the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.core.messages import ResourceUsage
from coordinator.monitoring.measuring import predictions, totals
from coordinator.monitoring.throughput import MemberThroughput
from dbelief.process.clock import ManualClock
from dbelief.rpc.pb import coordination_pb2 as wire

if TYPE_CHECKING:
    from tests.coordinator.world import World


def test_totals_are_those_of_all_incarnations_and_predict(a_world: Callable[..., World]) -> None:
    world, throughput = a_world().started(), MemberThroughput(ManualClock(), Path("nowhere/events.jsonl"), False)
    first, second = world.replicas
    before = totals(world.machine, throughput, 0.0)
    for replica in (first, second):
        for _ in range(2):
            replica.work()
            replica.train()
        world.machine.record_usage(replica.number, replica.incarnation, ResourceUsage({"compute": 9.0, "push": 1.0}))
        use = wire.ProcessorFigures(machine="m", network="n", cores=2.0, used_s=0.1, busy_s=0.5, lived_s=10.0)
        throughput.record_processors("replica", replica.number, replica.incarnation, use)
    after = totals(world.machine, throughput, 10.0)
    assert after.samples == world.machine.progress.samples > before.samples
    assert after.worker_s == pytest.approx(20.0)
    workers = [row for row in after.kept["members"] if row["role"] == "worker"]
    assert [row["totals"]["seconds"] for row in workers] == [{"compute": 9.0, "push": 1.0}] * 2
    assert all(row["totals"]["processors"]["cores"] == 2.0 for row in workers)
    assert len([row for row in after.kept["members"] if row["role"] == "ps"]) == 2
    factor = predictions(world.machine.job, before.kept, after.kept, 2)
    assert factor is not None
    assert factor(2) == pytest.approx(1.0, rel=0.02)
    assert factor(4) == pytest.approx(2.0, rel=0.1)
    first.die()
    world.settle()
    assert totals(world.machine, throughput, 11.0).worker_s == pytest.approx(20.0)


def test_too_little_is_no_prediction(a_world: Callable[..., World]) -> None:
    world, throughput = a_world().started(), MemberThroughput(ManualClock(), Path("nowhere/events.jsonl"), False)
    before = totals(world.machine, throughput, 0.0)
    assert predictions(world.machine.job, before.kept, totals(world.machine, throughput, 10.0).kept, 2) is None
