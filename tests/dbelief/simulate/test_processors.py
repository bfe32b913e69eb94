"""Processors: of one core, of other speeds, of workers and servers beside each other; followers on other hosts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dbelief.simulate.fleet import Fleet, MachineGroup
from dbelief.simulate.outcome import run

from .fleets import FREE, fleet, job, scenario

LONG: dict[str, Any] = {"lease": 10_000_000}
SANDBLASTER = {"name": "sandblaster", "batch": 1000, "portion": 10, "bundle": 1, "backups": False}


def samples(made: Any) -> list[int]:
    """Mini-batches of each worker that have been pushed and answered, of 10 samples."""
    return [int(count / 10) for count in run(made)[1].replicas["samples"]]


def whole(shares: float) -> int:
    return math.floor(shares + 1e-9)


@pytest.mark.parametrize("together", [0.5, 0.8, 1.0])
def test_two_processors_of_one_core_share_its_speed(together: float) -> None:
    on = fleet(1, workers=2, processors=2, together=together)
    # The first to begin is alone for its first mini-batch; every other one begins beside the other worker's.
    found = samples(scenario(job(LONG), on, seconds=100.25))
    assert found == [1 + whole(99.25 * together), whole(100.25 * together)]


def test_one_worker_on_two_processors_of_one_core_is_as_fast_as_alone() -> None:
    on = fleet(1, processors=2, together=0.5)
    assert samples(scenario(job(LONG), on, seconds=100.25)) == [100]


def test_leases_queue_for_the_coordinators_machine() -> None:
    """One worker and the coordinator on one processor: a lease of one mini-batch of a second takes half of one."""
    costs = FREE.with_values(lease_s=0.5)
    worker = MachineGroup(name="worker", step=1.0, spread=0.0, processors=1, coordinator=True, workers=2)
    on = Fleet(groups=(worker, MachineGroup(name="servers", workers=0, shards=1)))
    outcome, _ = run(scenario(job({"lease": 10}), on, costs=costs, seconds=3000.0))
    assert outcome.samples_per_s == pytest.approx(10 / 1.5, rel=5e-3)
    assert outcome.use["processors"] == pytest.approx(1.0, abs=2e-3)
    assert outcome.use["coordinator"] == pytest.approx(1 / 3, rel=5e-3)


def test_passes_share_processors_with_their_shards() -> None:
    """Two workers, a shard and the coordinator on one processor: a bundle is its computing, its push and its calls."""
    costs = FREE.with_values(client_call_s=0.02, push_call_s=0.06, program_s=0.0, program_byte_s=0.0)
    machine = MachineGroup(name="all", workers=2, shards=1, processors=1, step=0.1, spread=0.0)
    one = scenario(job(SANDBLASTER), Fleet(groups=(machine,)), costs=costs.with_values(shared=1.0), seconds=3000.0)
    outcome, _ = run(one)
    pass_s = 100 * (0.1 + 0.02 + 0.06) + 2 * 0.02  # and both workers fetch once
    assert outcome.samples_per_s == pytest.approx(1000 / pass_s, rel=5e-3)
    assert outcome.processors["shards"] == pytest.approx(100 * 0.06 / pass_s, rel=1e-2)
    assert outcome.processors["workers"] == pytest.approx((100 * 0.12 + 0.04) / pass_s, rel=1e-2)


def test_followers_of_one_host_use_its_processors() -> None:
    costs = FREE.with_values(push_call_s=0.25, fetch_call_s=0.125, shared=1.0)
    machine = MachineGroup(name="all", shards=2, processors=1, step=1.0, spread=0.0)
    one = scenario(job(LONG, replication=2), Fleet(groups=(machine,)), costs=costs, seconds=2000.0)
    outcome, world = run(one)
    service = world.world[0]["service"]
    assert (service["leaders"], service["followers"], service["follow_s"]) == (1, 1, 0.0)
    assert outcome.samples_per_s == pytest.approx(10 / (1.0 + 0.375 + 0.25), rel=4e-3)
    assert outcome.processors["shards"] == pytest.approx((0.375 + 0.25) / 1.625, rel=5e-3)
