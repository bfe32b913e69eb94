import numpy as np
import pytest

from dbelief.optim.gradients import clip_by_norm


def test_a_long_gradient_is_shortened_in_its_direction() -> None:
    gradient = np.array([3, -4, 0], np.float32)
    clip_by_norm(np, gradient, 1.0)
    np.testing.assert_allclose(gradient, [0.6, -0.8, 0], rtol=1e-6)


@pytest.mark.parametrize("longest", [5.0, 7.0, None])
def test_a_short_one_keeps_its_bits(longest: float | None) -> None:
    gradient = np.array([3, -4, 0], np.float32)
    clip_by_norm(np, gradient, longest)
    assert np.array_equal(gradient, np.array([3, -4, 0], np.float32))


def test_squares_that_overflow_do_not_make_it_zero() -> None:
    gradient = np.array([3e30, -4e30], np.float32)
    clip_by_norm(np, gradient, 1.0)
    np.testing.assert_allclose(gradient, [0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_non_finite_gradient_is_left_unclipped(bad: float) -> None:
    gradient = np.array([bad, 1], np.float32)
    clip_by_norm(np, gradient, 1.0)
    assert np.array_equal(gradient, np.array([bad, 1], np.float32), equal_nan=True)
