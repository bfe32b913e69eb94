"""Failures of workers, shards and the coordinator; passes of a batch method with backup tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dbelief.simulate.outcome import rates, run

from .fleets import FREE, fleet, job, scenario

SANDBLASTER = {"name": "sandblaster", "batch": 1000, "portion": 10, "bundle": 4}


def test_a_failed_worker_loses_a_step_and_its_lease_goes_on() -> None:
    limited = job({"lease": 400}, limits={"samples": 4_000})
    on = fleet(4, returns=50.0)
    outcome, _ = run(scenario(limited, on, kills={"worker": 20.5}, costs=FREE.with_values(start_s=0.0)))
    assert outcome.over
    assert outcome.samples == 4_000, "each sample counts once"
    assert outcome.failures["worker"] == 1
    assert outcome.time_s is not None
    assert 100 < outcome.time_s < 100 + 50


def test_a_shard_without_a_follower_loses_what_came_since_its_snapshot_set() -> None:
    sets = {"snapshots": {"every_s": 100.0}}
    kill = {"kills": {"shard": 250.5}, "costs": FREE.with_values(start_s=0.0)}
    on = fleet(4, servers={"returns": 0.0})
    alone, _ = run(scenario(job(**sets), on, **kill))
    twice = fleet(4, shards=2, servers={"returns": 0.0})
    followed, _ = run(scenario(job(**sets, replication=2), twice, **kill))
    assert alone.lost_samples == pytest.approx(50 * 40, rel=0.05)
    assert followed.lost_samples == 0
    assert followed.goodput == 1.0
    assert alone.goodput < 1.0


@pytest.mark.parametrize(("role", "stalls"), [("shard", True), ("coordinator", False)])
def test_a_failover_stalls_those_that_need_the_role(role: str, stalls: bool) -> None:
    on = fleet(4, servers={"returns": 30.0})
    outcome, world = run(
        scenario(on=on, kills={role: 500.0}, costs=FREE.with_values(start_s=0.0, coordinator_start_s=0.0))
    )
    during = rates(world)[int(510 / 1000 * 240) : int(525 / 1000 * 240)]
    assert outcome.failover_s[role] == pytest.approx(30.0)
    assert np.all(during == 0) == stalls
    assert rates(world)[-5:].mean() == pytest.approx(40.0, rel=0.05)


def test_mean_lives_give_as_many_failures() -> None:
    on = fleet(100, life=200.0, returns=10.0)
    outcome, _ = run(scenario(on=on, seconds=2000.0, costs=FREE.with_values(start_s=0.0)))
    assert outcome.failures["worker"] == pytest.approx(100 * 2000 / 210, rel=0.1)
    assert outcome.samples_per_s == pytest.approx(1000 * 200 / 210, rel=0.03)


def test_a_pass_of_equal_workers_takes_its_share() -> None:
    quick = FREE.with_values(program_s=0.0, program_byte_s=0.0)
    outcome, _ = run(scenario(job({**SANDBLASTER, "backups": False}), fleet(4, step=0.1), costs=quick))
    assert outcome.samples_per_s == pytest.approx(4 * 10 / 0.1, rel=0.03)
    copies, _ = run(scenario(job(SANDBLASTER), fleet(4, step=0.1), costs=quick))
    longest_s = 1000 * 0.01 / 4 + 4 * 0.1  # a copy that came too late is finished in the next pass
    assert 1000 / longest_s <= copies.samples_per_s <= outcome.samples_per_s


def test_backup_tasks_shorten_a_pass_with_a_slow_worker() -> None:
    quick = FREE.with_values(program_s=0.0, program_byte_s=0.0)
    slow = fleet(8, step=0.1, slow={"share": 0.125, "factor": 20})
    with_copies, _ = run(scenario(job(SANDBLASTER), slow, costs=quick))
    without, _ = run(scenario(job({**SANDBLASTER, "backups": False}), slow, costs=quick))
    assert with_copies.samples_per_s > 1.5 * without.samples_per_s
    assert with_copies.samples_per_s < 8 * 10 / 0.1


def test_a_pass_ends_whatever_fails() -> None:
    on = fleet(6, step=0.5, life=20.0, returns=5.0)
    outcome, _ = run(scenario(job(SANDBLASTER), on, costs=FREE.with_values(start_s=0.0), seconds=3000.0))
    assert outcome.failures["worker"] > 100
    assert outcome.rounds > 20
    assert outcome.lost_samples > 0
    assert math.isfinite(outcome.samples_per_s)
