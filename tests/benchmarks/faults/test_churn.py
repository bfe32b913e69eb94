"""The parts of the churn benchmark that need no process: plans, recovery times, and losses set against deaths."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.faults.churn import figures, pairs, verdict
from benchmarks.faults.churn_plan import PERIOD_S, make_plan
from benchmarks.faults.lost_pushes import restored, unexplained
from benchmarks.faults.recovery_time import increases, recoveries, speeds, spread
from benchmarks.faults.shard_parts import with_parts
from benchmarks.faults.supervisor import Death

NAMES = ["registry", "ps-0", "worker-0"]


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
