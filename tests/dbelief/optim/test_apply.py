"""Short segments are updated by a rule's formula until the loop is compiled, longer ones by the loop: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import aligned
from dbelief.optim import RULES, apply_rule, make_rule, warm_up
from dbelief.optim.apply import FEW
from dbelief.optim.rules.elastic import ElasticMove
from tests.examples import examples


@pytest.fixture(autouse=True)
def no_loops() -> Iterator[None]:
    """No rule was warmed up by a test before."""
    with patch("dbelief.optim.apply._compiled", set()):
        yield


@pytest.mark.parametrize("name", RULES)
def test_the_whole_and_its_two_parts_end_with_the_same_bits(name: str) -> None:
    rule, rng = make_rule(name, {}), np.random.default_rng(4)
    initial, gradients = rng.standard_normal((4, FEW + 1), np.float32)[0], rng.standard_normal((3, FEW + 1), np.float32)

    def end(cuts: list[slice]) -> bytes:
        w = initial.copy()
        states = tuple(np.full_like(w, value) for value in rule.state.values())
        for step, gradient in enumerate(gradients, 1):
            for cut in cuts:
                apply_rule(rule, w[cut], gradient[cut], tuple(s[cut] for s in states), np.float32(0.1), step)
        return b"".join(array.tobytes() for array in (w, *states))

    assert end([slice(None)]) == end([slice(0, 100), slice(100, None)])


@pytest.mark.parametrize(("longest", "calls"), [(FEW, 0), (FEW + 1, 1)])
def test_nothing_is_compiled_where_no_segment_needs_it(longest: int, calls: int) -> None:
    rule: Any = Mock(state=())
    warm_up(rule, longest)
    assert rule.apply.call_count == calls


@pytest.mark.parametrize("longest", [FEW, FEW + 1])
def test_a_short_segment_is_updated_by_a_loop_that_is_compiled_anyway(longest: int) -> None:
    rule: Any = Mock(state=())
    w = np.zeros(FEW, np.float32)
    warm_up(rule, longest)
    rule.reset_mock()
    apply_rule(rule, w, w, (), np.float32(0.1), 1)
    assert (rule.apply.call_count, rule.apply_reference.call_count) == ((0, 1) if longest == FEW else (1, 0))


@examples(40)
@given(st.sampled_from(list(RULES)), st.integers(0, 3 * FEW), st.integers(0, 17), st.integers(0, 3), st.integers(0, 9))
def test_copy_of_the_numbers_before_a_step_changes_no_bit(
    name: str, length: int, start: int, own: int, seed: int
) -> None:
    """At any address; from 16 numbers on, the elastic rule copies and steps in one pass."""
    rule, rng = make_rule(name, {}), np.random.default_rng(seed)
    room = aligned(length + start, np.float32)
    before, initial = room[start:], rng.standard_normal(length, np.float32)
    gradient = rng.standard_normal(length + own, np.float32)[own:]

    def end(*copy: np.ndarray) -> bytes:
        w = initial.copy()
        states = tuple(np.full_like(w, value) for value in rule.state.values())
        apply_rule(rule, w, gradient, states, np.float32(0.3), 1, *copy)
        return b"".join(array.tobytes() for array in (w, *states))

    with patch("dbelief.arrays.streaming_copy.LARGE", 64):
        assert end(before) == end()
    np.testing.assert_array_equal(before, initial)
    np.testing.assert_array_equal(room[:start], 0.0)


def test_arrays_of_an_exchange_are_of_one_length() -> None:
    w, short = np.zeros(16, np.float32), np.zeros(15, np.float32)
    with pytest.raises(ValueError, match="w, x and before must be of one length, got 16, 15, 16"):
        ElasticMove().exchange(w, short, w.copy(), np.float32(1))
