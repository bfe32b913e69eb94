"""Costs of calls, of followers and of the coordinator: times by hand."""

from __future__ import annotations

import pytest

from dbelief.errors import UserError
from dbelief.simulate.costs import Costs
from dbelief.simulate.outcome import run

from .fleets import FREE, fleet, job, scenario


@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_a_machine_of_another_speed_pays_as_much_more_for_calls(speed: float) -> None:
    costs = FREE.with_values(client_call_s=0.25)
    outcome, _ = run(scenario(on=fleet(1, speed=speed), costs=costs))
    cycle_s = 1 + 2 * 0.25 / speed  # a push and a request
    assert outcome.samples_per_s == pytest.approx(10 / cycle_s, rel=0.01)
    assert outcome.processors["workers"] == pytest.approx(1.0, rel=0.01)


def test_an_idle_processor_is_woken() -> None:
    outcome, _ = run(scenario(on=fleet(1), costs=FREE.with_values(wake_s=0.25)))
    assert outcome.samples_per_s == pytest.approx(10 / 1.25, rel=0.01)


def test_a_push_is_answered_when_its_followers_have_it() -> None:
    servers = {"machines": 2, "latency": 0.125}
    alone, _ = run(scenario(on=fleet(1, servers=servers, latency=0.125), costs=FREE))
    followed, _ = run(scenario(job(replication=2), fleet(1, servers=servers, latency=0.125), costs=FREE))
    assert alone.samples_per_s == pytest.approx(10 / 1.5, rel=0.01)
    assert followed.samples_per_s == pytest.approx(10 / 2.0, rel=0.01)


def test_shards_are_whole_with_their_followers() -> None:
    with pytest.raises(UserError, match="replication: 2 needs 2 processes for each shard, and the fleet has 3 in all"):
        run(scenario(job(replication=2), fleet(2, shards=3)))


def test_processors_in_use_are_those_of_the_costs() -> None:
    costs = FREE.with_values(push_call_s=0.125, fetch_call_s=0.125)
    outcome, _ = run(scenario(on=fleet(1, shards=2), costs=costs))
    assert outcome.samples_per_s == pytest.approx(10 / 1.25, rel=0.01)
    assert outcome.processors["workers"] == pytest.approx(1 / 1.25, rel=0.01)
    assert outcome.processors["shards"] == pytest.approx(2 * 0.25 / 1.25, rel=0.01)


def test_the_coordinator_is_woken_by_calls_that_find_it_idle() -> None:
    some, small = Costs(lease_s=1e-3, report_s=0.0, beat_s=0.0, idle=0.0, coordinator_wake_s=0.0), job()
    assert some.coordinator_share(small, 100, 500.0) == pytest.approx(0.5)
    woken = some.with_values(coordinator_wake_s=1e-3)
    calls_per_s = 500.0 + sum(woken.calls(small, 100, 500.0))
    share = woken.coordinator_share(small, 100, 500.0)
    assert share == pytest.approx(0.5 + 1e-3 * calls_per_s * (1 - share))
    assert woken.coordinator_share(small, 100, 5000.0) == 1.0


def test_a_call_is_a_heartbeat_too() -> None:
    costs, quiet = Costs(), job(deadlines={"beat_s": 30.0})
    assert costs.calls(quiet, 1000, 1000.0) == (0.0, 0.0)  # a lease a second from each worker
    reports_per_s, beats_per_s = costs.calls(quiet, 1000, 25.0)  # one in 40 s; reports each 10 s, of which one with it
    assert reports_per_s == pytest.approx(75.0)
    assert beats_per_s == 0.0
