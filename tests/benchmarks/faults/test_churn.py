"""The parts of the churn benchmark that need no process: plans, recovery times, and losses set against deaths."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.faults.churn import (
    BATCH,
    LEARNERS,
    LEASED,
    ROUND_STEPS,
    figures,
    goodput,
    joining_s,
    pairs,
    verdict,
)
from benchmarks.faults.churn_plan import AWAY_S, LEADING_COORDINATOR, LEADING_SHARD, PERIOD_S, make_plan
from benchmarks.faults.lost_pushes import restored, unexplained
from benchmarks.faults.recovery_time import increases, recoveries, speeds, spread
from benchmarks.faults.shard_parts import leaders, with_parts
from benchmarks.faults.supervisor import Death

NAMES = ["registry", "ps-0", "worker-0"]
NAMES_C = ["worker-0", "worker-1"]


def drawn(plan: str, seed: str) -> list[tuple[int, list[str]]]:
    """Deaths of ten minutes, looked at each second; every killed process starts again."""
    kills, starts, found = make_plan(plan, NAMES, seed), dict.fromkeys(NAMES, 1), []
    for now_s in range(600):
        due = kills.due(float(now_s), starts)
        for name in due:
            starts[name] += 1
        found += [(now_s, due)] if due else []
    return found


def test_plan_a_kills_one_process_each_period() -> None:
    found = drawn("a", "0")
    assert [now_s for now_s, _ in found] == [int(PERIOD_S * n) for n in range(1, 40)]
    assert all(len(due) == 1 for _, due in found)
    assert {name for _, due in found for name in due} == set(NAMES)


def test_plan_b_gives_each_process_the_mean_life() -> None:
    deaths = sum(len(due) for seed in range(20) for _, due in drawn("b", f"{seed}"))
    assert deaths / 20 == pytest.approx(len(NAMES) * 600 / 30, rel=0.15)


def by_role(names: list[str], seed: str, shards: int) -> list[tuple[int, str]]:
    plan = make_plan("c", names, seed, None, shards, 600.0)
    return [(now_s, name) for now_s in range(600) for name in plan.due(float(now_s), {})]


def test_plan_c_kills_learners_leading_shards_and_the_leading_coordinator() -> None:
    found = by_role(["registry", "ps-0", "worker-0", "worker-1"], "0", 2)
    shards = [at_s for at_s, name in found if name.startswith(LEADING_SHARD)]
    assert shards == list(range(60, 600, 60))
    assert [at_s for at_s, name in found if name == LEADING_COORDINATOR] == [200, 400]
    assert {name for _, name in found} <= {LEADING_COORDINATOR, *(f"{LEADING_SHARD}{n}" for n in (0, 1)), *NAMES_C}
    many = [by_role(NAMES_C, f"{seed}", 0) for seed in range(20)]
    assert sum(map(len, many)) / 20 == pytest.approx(2 * 600 / (60 + AWAY_S), rel=0.1)


def test_plan_c_kills_ranks_when_it_kills_learners() -> None:
    learners, ranks = by_role(NAMES_C, "0", 0), by_role(["launcher", "rank-0", "rank-1"], "0", 0)
    assert [(at_s, name.partition("-")[2]) for at_s, name in learners] == [
        (at_s, name.partition("-")[2]) for at_s, name in ranks
    ]
    assert all(later - at_s >= AWAY_S - 1 for name in NAMES_C for at_s, later in pairwise(moments(learners, name)))


def moments(found: list[tuple[int, str]], name: str) -> list[int]:
    return [at_s for at_s, one in found if one == name]


@pytest.mark.parametrize("plan", ["a", "b"])
def test_plans_are_those_of_their_seed(plan: str) -> None:
    assert drawn(plan, "1") == drawn(plan, "1") != drawn(plan, "2")


def test_no_plan_kills_nothing() -> None:
    assert drawn("none", "0") == []


def test_speed_is_of_the_second_before() -> None:
    looks = [(0.05 + 0.1 * n, 10.0) for n in range(30)]
    assert set(speeds(looks, 3.0)) == {100}


def test_a_counter_that_restarts_counts_on() -> None:
    assert increases([(0.0, 5.0), (1.0, 8.0), (2.0, 2.0)]) == [(0.0, 5.0), (1.0, 3.0), (2.0, 2.0)]


def test_few_long_steps_give_an_even_speed() -> None:
    steps = [(0.7 * n, 70.0) for n in range(1, 20)]
    assert speeds(spread(steps), 12.0)[10:] == pytest.approx([100] * 100, abs=3)
    assert set(speeds(steps, 12.0)[10:]) == {70, 140}
    assert spread([(1.0, 5.0), (2.0, 0.0)]) == [(1.0, 5.0)]


def test_recovery_ends_with_the_first_window_that_is_not_low() -> None:
    course = [100] * 20 + [10] * 20 + [90] * 60  # windows that end at 1.0, 1.1, ... s
    assert recoveries(course, [2.5], 100.0) == [pytest.approx(2.5)]
    assert recoveries(course, [6.0], 100.0) == [0.0]
    assert recoveries([100] * 20 + [10] * 20, [2.5], 100.0) == [None]
    assert recoveries(course, [], 100.0) == []


def event(at_s: float, what_happened: str, /, **fields: Any) -> dict[str, Any]:
    return {"time": datetime.fromtimestamp(at_s, UTC).isoformat(), "event": what_happened, **fields}


def died(at_s: float, role: str, name: str) -> dict[str, Any]:
    return event(at_s, "member", what="died", role=role, id=0, name=name)


def joined(at_s: float, role: str, name: str) -> dict[str, Any]:
    return event(at_s, "member", what="joined", role=role, id=0, name=name)


def death(at_s: float, name: str) -> Death:
    return Death(at_s, at_s, name, 1, "shard")


PROMOTED = [died(6, "shard", "ps-0"), joined(6, "follower", "ps-0"), event(6, "promoted", shard=0, set=None)]
START = [joined(0, "shard", "ps-0"), joined(1, "follower", "ps-1"), event(2, "followed", shard=0, name="ps-1")]
BACK = event(20, "shard_back", shard=0, set="3", samples=900, of=1_000)


def test_a_loss_is_explained_by_the_deaths_of_both_copies() -> None:
    rows = restored([*START, BACK], [death(10, "ps-1"), death(11, "ps-0")])
    assert [row["samples"] for row in rows] == [100]
    assert unexplained(rows) == []


@pytest.mark.parametrize("survivor", ["ps-0", "ps-1"])
def test_a_loss_with_a_living_copy_is_unexplained(survivor: str) -> None:
    died = "ps-1" if survivor == "ps-0" else "ps-0"
    rows = restored([*START, BACK], [death(10, died)])
    assert unexplained(rows) == rows != []


def test_a_promoted_leader_that_dies_alone_has_lost_its_predecessor() -> None:
    rows = restored([*START, *PROMOTED, BACK], [death(5, "ps-0"), death(10, "ps-1")])
    assert unexplained(rows) == []


def test_a_shard_that_takes_part_in_both_roles() -> None:
    events = [*START, *PROMOTED]
    deaths = [death(3, "ps-1"), death(4, "ps-0"), death(7, "ps-1"), death(8, "ps-0"), death(8, "x")]
    parts = [one.part for one in with_parts(deaths, events)]
    assert parts == ["following shard", "leading shard", "leading shard", "following shard", "shard"]


def test_the_leader_is_who_has_taken_over() -> None:
    assert leaders(START) == {0: "ps-0"}
    assert leaders([*START, *PROMOTED[:2]]) == {0: "ps-0"}
    assert leaders([*START, died(6, "shard", "ps-0"), event(6, "promoted", shard=0, set=None)]) == {0: "ps-1"}


def test_a_learner_joins_after_its_start() -> None:
    deaths = [Death(0.0, 5.0, "worker-0", 1, "worker"), Death(0.0, 50.0, "worker-1", 1, "worker")]
    events = [joined(1, "replica", "worker-0"), joined(17, "replica", "worker-0"), joined(40, "replica", "worker-0")]
    assert joining_s(events, deaths, 10.0) == [2.0]


def test_goodput_is_of_the_living_learners() -> None:
    calm = row("none", 0, 0.9) | {"job": "diloco", "speeds": [4_000] * 5_000, "away_s": 10.0}
    last_s = LEASED["diloco"] / 1_000  # of the last lease, which does not count
    deaths = [{"part": part, "at_s": 100.0, "code": None} for part in ("worker", "leading shard")]
    due = 1_000 * (LEARNERS * (400 - last_s) - 10) - BATCH * ROUND_STEPS / 2
    fields = {"trained_s": 400.0, "deaths": deaths, "before": 100, "samples": 100 + round(0.9 * due) + 4_000 * last_s}
    assert goodput(calm, {**calm, **fields}) == pytest.approx(0.9, rel=0.001)
    assert goodput(calm, {**calm, **fields, "job": "mnist"}) is None
    whole = 1_000 * (LEARNERS * 400 - 10) - BATCH * ROUND_STEPS / 2
    other = {**calm, **fields, "system": "torchrun", "samples": 100 + round(0.6 * whole)}
    assert goodput(calm, other) == pytest.approx(0.6, rel=0.001), "it has no leases"
    (both,) = pairs([calm, {**calm, **fields, "plan": "c"}]).values()
    assert "goodput 90.0%" in verdict("c", figures(both))


def row(plan: str, seed: int, accuracy: float) -> dict[str, Any]:
    one = {"system": "dbelief", "job": "mnist", "plan": plan, "seconds": 60.0, "wait_s": 0.0, "seed": seed}
    one |= {"every_s": None, "samples": 6_000, "before": 0, "trained_s": 60.0, "speeds": [100] * 590}
    one |= {"test_accuracy": accuracy, "deaths": [], "trouble": "", "pushes": 60, "pushes_lost": 0}
    return {**one, "restored": [], "unexplained": [], "codes": {}}


def test_both_plans_share_the_undisturbed_runs() -> None:
    calm = [row("none", seed, 0.9) for seed in range(2)]
    found = pairs([*calm, row("a", 0, 0.9), row("b", 0, 0.9), row("b", 1, 0.9), row("a", 7, 0.9)])
    seeds = {key[2]: [(one["seed"], other["seed"]) for one, other in both] for key, both in found.items()}
    assert seeds == {"a": [(0, 0)], "b": [(0, 0), (1, 1)]}


def test_accuracies_compare_by_their_medians() -> None:
    calm = [row("none", seed, accuracy) for seed, accuracy in enumerate([0.90, 0.91, 0.92])]
    disturbed = [row("a", seed, accuracy) for seed, accuracy in enumerate([0.92, 0.91, 0.90])]
    (both,) = pairs([*calm, *disturbed]).values()
    assert figures(both)["points"] == pytest.approx(0.0)
    assert verdict("a", figures(both)) == ""


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"codes": {"ps-1": 1}}, "exit codes [{'ps-1': 1}]"),
        ({"test_accuracy": None, "trouble": "waited 9 s for the end of the job"}, "waited 9 s"),
        ({"test_accuracy": 0.89}, "-1.00 points"),
        ({"trained_s": 80.0}, "75% of the speed"),
        ({"unexplained": [{"samples": 100}]}, "1 runs lost pushes without two deaths"),
    ],
)
def test_what_is_wrong_with_a_run_is_told(fields: dict[str, Any], wrong: str) -> None:
    both = [(row("none", 0, 0.9), row("a", 0, 0.9) | fields)]
    assert wrong in verdict("a", figures(both))
