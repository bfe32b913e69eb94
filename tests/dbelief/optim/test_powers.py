"""Powers in decimal integers: the nearest float64, independent of the C library."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbelief.optim.rules.powers import power


@given(st.floats(0, 4), st.integers(0, 40))
@example(1.25, 23)
def test_a_whole_power_is_the_nearest_float64(base: float, exponent: int) -> None:
    assert power(base, exponent) == float(Fraction(base) ** exponent)


@given(st.floats(0, 1, exclude_min=True), st.floats(0, 4))
def test_any_other_power_is_c_s_to_its_last_bit(base: float, exponent: float) -> None:
    expected = base**exponent
    assert abs(power(base, exponent) - expected) <= 2 * math.ulp(expected)


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [(0.0, 0, 1.0), (0.0, 0.5, 0.0), (1.5, 10**9, math.inf), (0.5, 10**9, 0.0), (0.25, 0.5, 0.5), (0.25, 1.5, 0.125)],
)
def test_ends_of_the_range(base: float, exponent: float, expected: float) -> None:
    assert power(base, exponent) == expected
