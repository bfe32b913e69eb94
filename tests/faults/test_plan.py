"""A plan is its seed: drawn twice it is the same, and its text is complete."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.plan import POSSIBLE, Fault, Harm, Kind, Plan, Way, draw_accidents

LINKS = {"0.0": {Way.PUSH: 400, Way.PULL: 200, Way.CALL: 100}, "1.0": {Way.PUSH: 300}}


@given(seed=st.integers(0, 2**32))
def test_a_seed_is_a_plan(seed: int) -> None:
    first, again = (
        Plan.draw(seed, links, share=0.05, accidents=draw_accidents(seed, ["ps-0", "worker-1"], 50, 4))
        for links in (LINKS, dict(reversed(LINKS.items())))
    )
    assert first == again
    assert str(first) == str(again)
    assert str(first).count("\n") == len(first.faults) + len(first.accidents) == (20 + 10 + 5 + 15) + 4


def test_another_seed_is_another_plan() -> None:
    assert len({str(Plan.draw(seed, LINKS)) for seed in range(20)}) == 20
    assert len({draw_accidents(seed, ["ps-0", "ps-1"], 100, 3) for seed in range(20)}) == 20


@given(seed=st.integers(0, 2**32))
def test_plan_has_only_possible_faults(seed: int) -> None:
    for fault in Plan.draw(seed, LINKS, share=0.2).faults:
        assert fault.kind in POSSIBLE[fault.way]
        assert 0 <= fault.at < LINKS[fault.link][fault.way]
    steps = [accident.step for accident in draw_accidents(seed, ["ps-0"], 30, 5)]
    assert steps == sorted(set(steps))


def test_weights_say_how_often_a_kind_is_drawn() -> None:
    drawn = [fault.kind for fault in Plan.draw(7, LINKS, 0.5, {Kind.DROP: 0.0, Kind.LATE: 20.0}).faults]
    assert Kind.DROP not in drawn
    assert drawn.count(Kind.LATE) > len(drawn) / 3


def test_plan_is_immutable_and_prints_itself() -> None:
    plan = Plan(3, (Fault("1.0", Way.PUSH, 17, Kind.LATE, 5),), draw_accidents(3, ["ps-0"], 10, 1, [Harm.KILL]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.seed = 4  # type: ignore[misc]
    first, fault, accident = str(plan).splitlines()
    assert (first, fault.strip()) == ("plan of seed 3:", "1.0 push 17: late 5")
    assert accident.strip().endswith("kill ps-0")
    assert str(Plan()) == "plan of seed None: nothing goes wrong"
