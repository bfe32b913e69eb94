"""Reference: Dean et al. 2012, section 4.1, and the identities that follow from its equation."""

import numpy as np
import pytest

from dbelief.optim.rules.adagrad import Adagrad
from tests.dbelief.optim.conftest import Run

both = pytest.mark.parametrize("fused", [True, False])


@both
@pytest.mark.parametrize("g", [0.5, -3.0, 2.0**-62])
def test_a_constant_gradient_in_closed_form(run: Run, fused: bool, g: float) -> None:
    """w_K = w_0 - rate sign(g) (1 + 1/sqrt(2) + ... + 1/sqrt(K))."""
    rate, k = 0.1, np.arange(1, 201)
    walked = run(Adagrad(), np.ones(1, np.float32), np.full((200, 1), g, np.float32), rate, fused=fused)
    np.testing.assert_allclose(walked[:, 0], 1 - rate * np.sign(g) * np.cumsum(k**-0.5), rtol=2e-5)


@both
@pytest.mark.parametrize("power", [-20, -3, 1, 20])
def test_scaling_by_a_power_of_two_leaves_every_bit(run: Run, fused: bool, power: int) -> None:
    rng = np.random.default_rng(0)
    w0, gradients = (
        rng.standard_normal(100, dtype=np.float32),
        rng.standard_normal((30, 100), dtype=np.float32),
    )
    scaled = np.ldexp(gradients, power)
    np.testing.assert_array_equal(
        run(Adagrad(), w0, scaled, 0.1, fused=fused), run(Adagrad(), w0, gradients, 0.1, fused=fused)
    )


@both
@pytest.mark.parametrize("eps", [0.0, 1e-10])
@pytest.mark.parametrize("g", [0.0, -0.0, 1e-45, 2.6e-23, -2.6e-23])
def test_no_step_where_the_sum_of_squares_is_zero(run: Run, fused: bool, g: float, eps: float) -> None:
    """0 / 0 := 0; below 2.6e-23 it is the square that is zero, not the gradient."""
    gradient = np.array([[g, 1.0]], np.float32)
    assert gradient[0, 0] ** 2 == 0
    states = (np.zeros(2, np.float32),)
    after = run(Adagrad(eps), np.array([3.0, 3.0], np.float32), gradient, 0.5, states, fused)
    np.testing.assert_array_equal(after[0], [3.0, 2.5])
    np.testing.assert_array_equal(states[0], [0.0, 1.0])


@both
def test_a_square_that_does_not_underflow_moves(run: Run, fused: bool) -> None:
    gradient = np.array([[2.7e-23]], np.float32)
    assert run(Adagrad(), np.zeros(1, np.float32), gradient, 0.5, fused=fused)[0, 0] != 0


@both
def test_eps_stands_outside_the_root_and_a0_starts_the_sum(run: Run, fused: bool) -> None:
    rule = Adagrad(eps=1.0, a0=7.0)
    assert rule.state == {"sum_of_squares": 7.0}
    # sqrt(7 + 3^2) + 1 = 5
    after = run(rule, np.zeros(1, np.float32), np.array([[3.0]], np.float32), 1.0, fused=fused)
    assert after[0, 0] == -np.float32(3.0) / np.float32(5.0)
