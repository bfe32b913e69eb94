"""Replicas that do not wait for each other: rates, staleness and bytes against a plain loop, and against formulas."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbelief.simulate.events.event_loop import simulate
from dbelief.simulate.events.parts import BINS, PUSHES, STALENESS
from dbelief.simulate.outcome import run

from .fleets import FREE, fleet, job, scenario


def plain_loop(steps_s: Sequence[float], served_s: float, until_s: float) -> tuple[list[int], int, int]:
    """Pushes answered by replica, pushes served, sum of their staleness: each step is pushed, and the answer fetched.

    A shard serves a push and the fetch with it, in order of arrival; nothing else takes time.
    """
    due = [(0.0, number, "begin", number) for number in range(len(steps_s))]
    heapq.heapify(due)
    order, free_s, version, pushes, stale = len(due), 0.0, 0, 0, 0
    base, answered = [0] * len(steps_s), [0] * len(steps_s)
    while due[0][0] <= until_s:
        at_s, _, what, who = heapq.heappop(due)
        order += 1
        if what == "begin":
            heapq.heappush(due, (at_s + steps_s[who], order, "push", who))
        elif what == "push":
            free_s = max(free_s, at_s) + served_s
            stale, pushes, version = stale + version - base[who], pushes + 1, version + 1
            base[who] = version
            heapq.heappush(due, (free_s, order, "answer", who))
        else:
            answered[who] += 1
            heapq.heappush(due, (at_s, order, "begin", who))
    return answered, pushes, stale


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.01, 3.0), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.001, 0.05, 0.4]),
)
def test_figures_are_those_of_a_plain_loop(steps_s: list[float], served_s: float) -> None:
    steps_s = [step_s * (1 + 1e-3 * (number + 2) ** 0.5) for number, step_s in enumerate(steps_s)]  # no two alike
    costs = FREE.with_values(push_call_s=served_s)
    made = scenario(job({"lease": 10_000_000}), fleet(len(steps_s)), costs=costs, seconds=60.0)
    world = made.world()
    world.replicas["step_s"], world.replicas["busy_s"] = steps_s, 0.0
    simulate(world)
    answered, pushes, stale = plain_loop(steps_s, served_s, 60.0)
    totals = world.world[0]["totals"]
    # The first fetch takes no time, so that all begin at 0.
    assert (world.replicas["samples"] / 10).tolist() == answered
    assert (totals[PUSHES], totals[STALENESS]) == (pushes, stale)


def test_one_worker_alone_makes_a_mini_batch_a_step() -> None:
    outcome, _ = run(scenario(on=fleet(1)))
    assert outcome.samples_per_s == pytest.approx(10.0, rel=2e-3)
    assert outcome.staleness_mean == 0
    assert outcome.computing == pytest.approx(1.0, abs=2e-3)
    assert outcome.saturates == "computing of workers"


@pytest.mark.parametrize("workers", [2, 7, 40])
def test_staleness_of_equal_workers_is_their_number_less_one(workers: int) -> None:
    outcome, _ = run(scenario(on=fleet(workers, spread=0.3)))
    assert outcome.staleness_mean == pytest.approx(workers - 1, rel=0.02)
    assert outcome.staleness[0] <= outcome.staleness[1] <= outcome.staleness[2]


def test_overlap_hides_the_exchange_and_doubles_staleness() -> None:
    link: dict[str, Any] = {
        "link": 8_000.0,
        "latency": 0.0,
    }  # with 300 bytes of a call 1.1 s an exchange
    plain, _ = run(scenario(on=fleet(3, **link, spread=0.0)))
    hidden, _ = run(scenario(job({"overlap": True}), fleet(3, step=2.0, spread=0.0, **link)))
    assert plain.samples_per_s == pytest.approx(30 / (1 + 8600 / 8000), rel=0.01)
    assert hidden.samples_per_s == pytest.approx(15.0, rel=0.01)
    assert hidden.staleness_mean == pytest.approx(2 * 2 + 1, rel=0.05), "two cycles of the others, and its own push"


def test_bytes_are_those_of_pushes_and_of_fetches_that_bring_something() -> None:
    outcome, _ = run(scenario(on=fleet(4, spread=0.1)))
    assert outcome.sent_per_s == pytest.approx(4000 * outcome.pushes / outcome.seconds)
    assert outcome.received_per_s == pytest.approx(outcome.sent_per_s, rel=0.01)
    alone, _ = run(scenario(job({"n_push": 4}), fleet(1)))
    assert alone.received_per_s == pytest.approx(alone.sent_per_s, rel=0.02), "three of four fetches find no change"


def test_the_slowest_resource_is_named_and_bounds_the_rate() -> None:
    by_shard, _ = run(scenario(on=fleet(20), costs=FREE.with_values(push_call_s=0.1)))
    assert by_shard.saturates == "shards"
    assert by_shard.samples_per_s == pytest.approx(100.0, rel=0.01)
    by_link, _ = run(scenario(on=fleet(20, servers={"link": 43_000.0})))
    assert by_link.saturates == "links of shards"
    assert by_link.samples_per_s == pytest.approx(100.0, rel=0.01)
    by_coordinator, _ = run(scenario(job({"lease": 10}), fleet(20), costs=FREE.with_values(lease_s=0.1)))
    assert by_coordinator.saturates == "coordinator"
    assert by_coordinator.samples_per_s == pytest.approx(100.0, rel=0.01)
    many, _ = run(scenario(on=fleet(1, workers=6, processors=2)))
    assert many.saturates == "processors"
    assert many.samples_per_s == pytest.approx(20.0, rel=0.01)


@pytest.mark.parametrize("bound", [1, 3, 10])
def test_no_worker_is_further_ahead_than_the_bound(bound: int) -> None:
    on = fleet(5, slow={"share": 0.2, "factor": 8})
    made = scenario(job({"staleness": bound}), on, traced=100_000, warm_s=200.0)
    outcome, world = run(made)
    clocks = np.zeros(5, int)
    for event in world.trace[: int(world.world[0]["traced"])]:
        if event["kind"] == 1:
            clocks[event["replica"]] += 1
            assert clocks.max() - clocks.min() <= bound + 1
    assert outcome.samples_per_s == pytest.approx(5 * 10 / 8, rel=0.05), "all go as fast as the slowest"


def test_leases_grow_where_many_ask() -> None:
    small = {"lease": 10}
    few, _ = run(scenario(job(small), fleet(32), seconds=100.0))
    many, _ = run(scenario(job(small), fleet(400), seconds=100.0, warm_s=50.0))
    assert few.leases == pytest.approx(32 * 100, rel=0.02)
    assert many.leases / many.seconds == pytest.approx(100.0, rel=0.3), "about a hundred a second"


def test_equal_seeds_give_equal_results_and_others_others() -> None:
    on = fleet(50, spread=0.4, across=0.3, life=200.0)
    first, second, other = (run(scenario(on=on, seed=seed))[1] for seed in (3, 3, 4))
    assert first.world.tobytes() == second.world.tobytes()
    assert first.replicas.tobytes() == second.replicas.tobytes()
    assert first.world.tobytes() != other.world.tobytes()


def test_results_are_those_of_other_processors() -> None:
    """Figures of a fixed scenario, as another machine has written them: no operation depends on the processor."""
    on = fleet(64, spread=0.3, across=0.2, link=1e6, latency=0.004, life=400.0)
    outcome, world = run(scenario(on=on, costs=FREE.with_values(push_call_s=0.002), seed=7))
    rates = world.world[0]["by_time"]
    assert len(rates) == BINS
    assert [outcome.samples, outcome.pushes, outcome.failures["worker"], outcome.events] == GOLDEN
    assert outcome.staleness_mean == STALENESS_MEAN


GOLDEN = [560270.0, 56027, 137, 113452]
STALENESS_MEAN = 54.888161065200705
