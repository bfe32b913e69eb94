"""Properties of every rule: the compiled loop is the formula, and a vector may be cut anywhere."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dbelief.optim import RULES, Rule, make_rule, warm_up
from tests.dbelief.optim.conftest import Run
from tests.examples import examples

VARIANTS = [
    make_rule("sgd", {}),
    make_rule("momentum", {}),
    make_rule("sgd", {"weight_decay": 0.1}),
    make_rule("momentum", {"mu": 0.0}),
    make_rule("momentum", {"weight_decay": 0.1}),
    make_rule("caffe-momentum", {}),
    make_rule("caffe-momentum", {"mu": 0.5, "weight_decay": 0.1}),
    make_rule("nesterov", {}),
    make_rule("nesterov", {"weight_decay": 0.1}),
    make_rule("adagrad", {}),
    make_rule("adagrad", {"eps": 1e-10, "a0": 0.1}),
    make_rule("adam", {}),
    make_rule("adam", {"eps": 0.0}),
    make_rule("adamw", {}),
    make_rule("adamw", {"weight_decay": 0.3}),
    make_rule("ftrl", {}),
    make_rule("ftrl", {"beta": 0.0, "l1": 0.5, "l2": 0.1}),
]
every_rule = pytest.mark.parametrize("rule", VARIANTS, ids=str)

# Zeros, subnormals and numbers whose squares overflow are what such strategies like to draw.
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal bit for bit, except that any NaN equals any other: IEEE 754 leaves its bits open."""
    nan = np.isnan(one) & np.isnan(other)
    return bool(np.all(nan | (one.view(np.uint32) == other.view(np.uint32))))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rule, np.ndarray, np.ndarray, list[np.ndarray], float, int]:
    """A rule, w, g, its states, rate and step; lengths on both sides of every vector width."""
    rule, n = draw(st.sampled_from(VARIANTS)), draw(st.integers(0, 67))
    w, g, *states = (draw(arrays(np.float32, n, elements=numbers)) for _ in range(2 + len(rule.state)))
    if states and "velocity" not in rule.state:
        states[-1] = abs(states[-1])  # sums of squares
    return (
        rule,
        w,
        g,
        states,
        draw(st.sampled_from([0.0, 1e-3, 0.1, 1.0, 30.0])),
        draw(st.integers(1, 100_000)),
    )


@examples(200)
@given(case=cases())
def test_the_compiled_loop_gives_the_bits_of_the_formula(case: Any) -> None:
    rule, w, g, states, rate, step = case
    w_formula, states_formula = w.copy(), [state.copy() for state in states]
    rule.apply(w, g, tuple(states), np.float32(rate), step)
    rule.apply_reference(np, w_formula, g, tuple(states_formula), np.float32(rate), step)
    assert same_bits(w, w_formula)
    assert all(same_bits(one, other) for one, other in zip(states, states_formula, strict=True))


@every_rule
@pytest.mark.parametrize("cuts", [1, 2, 7, 10])
def test_shards_together_give_the_bits_of_the_whole(rule: Rule, cuts: int, run: Run) -> None:
    rng = np.random.default_rng(cuts)
    w0 = rng.standard_normal(1009, dtype=np.float32)
    gradients = rng.standard_normal((6, 1009), dtype=np.float32)
    whole = run(rule, w0, gradients, 0.05)
    ends = np.sort(rng.integers(0, 1010, cuts - 1))
    shards = zip(np.split(w0, ends), np.split(gradients, ends, axis=1), strict=True)
    assert same_bits(np.concatenate([run(rule, w, np.ascontiguousarray(g), 0.05) for w, g in shards], axis=1), whole)


@pytest.mark.parametrize("rule", [rule for rule in VARIANTS if not getattr(rule, "weight_decay", 0)], ids=str)
def test_no_gradient_no_step_from_rest(rule: Rule, run: Run) -> None:
    """But where w decays all the same."""
    w0 = np.array([-0.0, 0.0, 1e-40, 5.0], np.float32)
    assert same_bits(run(rule, w0, np.zeros((1, 4), np.float32), 0.1)[0], w0)


@every_rule
def test_a_view_into_a_message_is_taken_as_it_is(rule: Rule, run: Run) -> None:
    """Read-only and at an odd address: what a gradient looks like inside received bytes."""
    gradient = np.random.default_rng(0).standard_normal(33, dtype=np.float32)
    view = np.frombuffer(b"xyz" + gradient.tobytes(), np.float32, offset=3)
    assert not view.flags.aligned
    assert not view.flags.writeable
    w0 = np.ones(33, np.float32)
    assert same_bits(run(rule, w0, [view], 0.1), run(rule, w0, [gradient], 0.1))


@every_rule
def test_arrays_of_other_lengths_are_refused(rule: Rule) -> None:
    states = tuple(np.zeros(4, np.float32) for _ in rule.state)
    with pytest.raises(ValueError, match=r"one length, got 4, 3"):
        rule.apply(np.zeros(4, np.float32), np.zeros(3, np.float32), states, np.float32(0.1), 1)


@every_rule
@pytest.mark.parametrize("w", [np.zeros(4), np.zeros(8, np.float32)[::2]], ids=["float64", "strided"])
def test_other_arrays_are_refused(rule: Rule, w: np.ndarray) -> None:
    states = tuple(np.zeros(4, np.float32) for _ in rule.state)
    with pytest.raises(TypeError):
        rule.apply(w, np.zeros(4, np.float32), states, np.float32(0.1), 1)


@pytest.mark.parametrize("name", RULES)
def test_warm_up_and_names(name: str) -> None:
    rule = make_rule(name, {})
    warm_up(rule)
    assert rule.name == name
    assert all(value == 0.0 for value in rule.state.values())
