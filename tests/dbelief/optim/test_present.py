"""Steps in which numbers take no part, against a loop that gives each number a vector of its own."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.absent import Missed, joined
from dbelief.optim import RULES, Rule, apply_present, make_rule, missed_after
from dbelief.optim.apply import apply_rule
from tests.examples import examples

N = 13
RATE = np.float32(0.1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rule, list[list[bool]], list[int]]:
    """A rule with all its options at work, which numbers take part in each of some steps, and cuts of the vector."""
    name = draw(st.sampled_from(RULES))
    options = {"weight_decay": 0.1} if name not in ("adagrad", "adam", "ftrl") else {}
    steps = draw(st.lists(st.lists(st.booleans(), min_size=N, max_size=N), min_size=1, max_size=6))
    return make_rule(name, options), steps, sorted(draw(st.sets(st.integers(1, N - 1), max_size=3)))


def begin(rule: Rule, n: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    return np.linspace(-2, 2, n, dtype=np.float32), tuple(np.full(n, v, np.float32) for v in rule.state.values())


@examples(150)
@given(case=cases(), seed=st.integers(0, 1_000))
def test_each_number_makes_the_steps_that_it_took_part_in(case: Any, seed: int) -> None:
    rule, steps, cuts = case
    gradients = np.random.default_rng(seed).standard_normal((len(steps), N), dtype=np.float32)
    w, states = begin(rule, N)
    alone, alone_states = begin(rule, N)
    for number in range(N):
        made = 0
        for gradient, took in zip(gradients, steps, strict=True):
            if took[number]:
                own = slice(number, number + 1)
                apply_rule(rule, alone[own], gradient[own], tuple(s[own] for s in alone_states), RATE, made + 1)
                made += 1
    ends = [0, *cuts, N]
    missed: list[Missed] = [()] * (len(ends) - 1)
    for made, (gradient, took) in enumerate(zip(gradients, steps, strict=True)):
        for index, (start, stop) in enumerate(itertools.pairwise(ends)):
            absent = joined((at, at + 1) for at, here in enumerate(took[start:stop]) if not here)
            parts = tuple(state[start:stop] for state in states)
            sent = np.where(took[start:stop], gradient[start:stop], np.float32(np.nan))  # never read where absent
            apply_present(rule, w[start:stop], sent, parts, RATE, made, absent, missed[index])
            missed[index] = missed_after(rule, missed[index], absent)
    assert w.tobytes() == alone.tobytes()
    assert [state.tobytes() for state in states] == [state.tobytes() for state in alone_states]


@pytest.mark.parametrize("name", RULES)
def test_only_rules_that_count_steps_keep_what_was_missed(name: str) -> None:
    missed = missed_after(make_rule(name, {}), (), (1, 3))
    assert missed == (((1, 3, 1),) if name in ("adam", "adamw") else ())


def test_counts_of_missed_steps_are_joined_where_they_are_equal() -> None:
    rule = make_rule("adam", {})
    missed = missed_after(rule, missed_after(rule, (), (0, 4)), (2, 6))
    assert missed == ((0, 2, 1), (2, 4, 2), (4, 6, 1))
    assert missed_after(rule, missed, (0, 2, 4, 6)) == ((0, 6, 2),)
