"""Rounds: lockstep, quorums, sums among workers, failures of members."""

from __future__ import annotations

from typing import Any

import pytest

from dbelief.plan.allreduce_cost import Link, ring_seconds
from dbelief.simulate.outcome import run

from .fleets import FREE, RULE, fleet, job, scenario

DILOCO: dict[str, Any] = {"name": "diloco", "batch": 10, "steps": 4, "inner": RULE, "lease": 10_000}
SLOW_ONE: dict[str, Any] = {"slow": {"share": 0.25, "factor": 10}}


def of_diloco(**fields: Any) -> dict[str, Any]:
    return {**DILOCO, **fields}


def test_a_round_in_lockstep_takes_as_long_as_its_slowest_member() -> None:
    outcome, _ = run(scenario(job(of_diloco()), fleet(4, **SLOW_ONE)))
    assert outcome.samples_per_s == pytest.approx(4 * 10 / 10, rel=0.05)
    assert outcome.staleness_mean == 0
    assert outcome.rounds == pytest.approx(1000 / 40, abs=1)


def test_a_quorum_does_not_wait_and_late_pushes_are_stale() -> None:
    with_quorum = job(of_diloco(quorum=3, grace_s=0.0))
    outcome, _ = run(scenario(with_quorum, fleet(4, **SLOW_ONE)))
    alone, _ = run(scenario(job(of_diloco()), fleet(3)))
    assert outcome.samples_per_s == pytest.approx(alone.samples_per_s * (1 + 1 / 30), rel=0.03)
    late = 1 / (1 + 30)  # of all pushes, each some ten rounds late
    assert outcome.staleness_mean == pytest.approx(late * 9.5, rel=0.2)


def test_grace_is_waited_after_the_quorum() -> None:
    waits, _ = run(scenario(job(of_diloco(quorum=3, grace_s=1.0)), fleet(4, **SLOW_ONE)))
    assert waits.rounds == pytest.approx(1000 / 5, rel=0.05)
    auto, _ = run(scenario(job(of_diloco(quorum=3)), fleet(4, **SLOW_ONE)))
    assert auto.rounds == pytest.approx(1000 / (4 * 33 / 32), rel=0.05)


def test_delay_hides_an_exchange() -> None:
    link: dict[str, Any] = {"link": 8_000.0}  # an exchange of both directions takes 1.1 s
    waits, _ = run(scenario(job(of_diloco()), fleet(2, **link)))
    hides, _ = run(scenario(job(of_diloco(delay=2)), fleet(2, **link)))
    assert waits.samples_per_s == pytest.approx(2 * 40 / (4 + 8600 / 8000), rel=0.03)
    assert hides.samples_per_s == pytest.approx(2 * 40 / 4, rel=0.03)


def test_a_sum_over_a_ring_takes_what_its_formula_says() -> None:
    strategy = {"name": "sync-sgd", "batch": 10, "lease": 10_000, "rule": RULE, "reduction": {"way": "ring"}}
    outcome, _ = run(scenario(job(strategy), fleet(5, link=8_000.0)))
    sum_s = ring_seconds(5, 4000, Link(0.0, 1 / 8000))
    assert outcome.samples_per_s == pytest.approx(50 / (1 + sum_s), rel=0.01)
    assert outcome.sent_per_s == pytest.approx(2 * 4 * 4000 * outcome.rounds / outcome.seconds)


@pytest.mark.parametrize("fence_s", [2.0, 8.0])
def test_a_round_waits_for_a_failed_member_until_it_is_fenced(fence_s: float) -> None:
    long_away = fleet(4, returns=500.0)
    strategy = job(of_diloco(), deadlines={"beat_s": fence_s})
    outcome, world = run(scenario(strategy, long_away, kills={"worker": 102.0}, costs=FREE.with_values(start_s=0.0)))
    assert outcome.failures == {"worker": 1, "shard": 0, "coordinator": 0}
    whole = [scenario(strategy, long_away).seconds / 4 * 160]
    lost = 40 * 500 / 4 + 160 * max(0.0, fence_s - 2.0) / 4
    assert outcome.samples == pytest.approx(whole[0] - lost, rel=0.02)
    assert world.replicas["samples"][0] < world.replicas["samples"][1]
