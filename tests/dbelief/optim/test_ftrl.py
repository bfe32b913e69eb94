"""Reference: McMahan et al. 2013, Algorithm 1, and the minimum that its weights are by construction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.optim.rules.adagrad import Adagrad
from dbelief.optim.rules.ftrl import Ftrl
from tests.dbelief.optim.conftest import Run
from tests.examples import examples

both = pytest.mark.parametrize("fused", [True, False])
gradients_of_one = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=12)


def paper(gradients: np.ndarray, alpha: float, beta: float, l1: float, l2: float) -> list[float]:
    """The weight after each gradient, as the paper's pseudocode has it: w is made of z and n when it is needed."""
    z = n = 0.0

    def weight() -> float:
        if abs(z) <= l1:
            return 0.0
        return -(z - math.copysign(l1, z)) / ((beta + math.sqrt(n)) / alpha + l2)

    weights = []
    for g in gradients:
        w = weight()
        sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / alpha
        z += g - sigma * w
        n += g * g
        weights.append(weight())
    return weights


@both
@pytest.mark.parametrize(
    ("beta", "l1", "l2"), [(1.0, 0.0, 0.0), (1.0, 0.5, 0.0), (0.0, 0.5, 0.1), (2.0, 0.0, 3.0), (1.0, 40.0, 0.0)]
)
def test_the_papers_algorithm(run: Run, fused: bool, beta: float, l1: float, l2: float) -> None:
    gradients = np.random.default_rng(0).standard_normal((40, 30), dtype=np.float32)
    gradients[np.random.default_rng(1).random((40, 30)) < 0.5] = 0  # as of sparse rows
    walked = run(Ftrl(beta, l1, l2), np.zeros(30, np.float32), gradients, 0.25, fused=fused)
    expected = np.array([paper(column.astype(float), 0.25, beta, l1, l2) for column in gradients.T]).T
    np.testing.assert_allclose(walked, expected, rtol=1e-4, atol=1e-5)
    assert (walked[-1] == 0).all() == (l1 > 30)


@examples(100)
@given(gradients_of_one, st.sampled_from([0.1, 1.0]), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.3, 2.0]))
def test_the_weight_is_where_the_regularised_sum_is_least(
    run: Run, gradients: list[float], alpha: float, beta: float, l1: float
) -> None:
    """By the subgradient at the weight: 0 is in it, and the function is convex."""
    l2, rule = 0.2, Ftrl(beta, l1, 0.2)
    steps = np.array(gradients)[:, None]
    weights = run(rule, np.zeros(1), steps, alpha, fused=False)[:, 0]  # float64
    before = np.concatenate([[0.0], weights[:-1]])
    roots = np.sqrt(np.cumsum(np.square(gradients)))
    sigmas = np.diff(np.concatenate([[0.0], roots])) / alpha
    slope = np.sum(gradients) + np.sum(sigmas * (weights[-1] - before)) + (beta / alpha + l2) * weights[-1]
    if weights[-1] == 0:
        assert abs(slope) <= l1 + 1e-9
    else:
        assert slope + l1 * np.sign(weights[-1]) == pytest.approx(0, abs=1e-8)


@both
def test_without_penalties_and_beta_it_is_adagrad(run: Run, fused: bool) -> None:
    rng = np.random.default_rng(2)
    w0, gradients = rng.standard_normal(50, dtype=np.float32), rng.standard_normal((30, 50), dtype=np.float32)
    adagrad = run(Adagrad(), w0, gradients, 0.1, fused=fused)
    np.testing.assert_allclose(run(Ftrl(beta=0.0), w0, gradients, 0.1, fused=fused), adagrad, rtol=2e-4, atol=2e-5)


@both
def test_an_initial_value_stays_until_the_first_gradient(run: Run, fused: bool) -> None:
    gradients = np.array([[0, 1e-30], [0, 0], [1, 0]], np.float32)
    walked = run(Ftrl(l1=0.1), np.array([3.0, -2.0], np.float32), gradients, 0.5, fused=fused)
    np.testing.assert_array_equal(walked[:2], [[3, -2], [3, -2]])
    assert walked[2, 0] != 3
    assert walked[2, 1] == -2


@both
def test_l1_leaves_most_weights_of_noise_at_zero_and_keeps_those_with_a_slope(run: Run, fused: bool) -> None:
    gradients = np.random.default_rng(3).standard_normal((200, 100), dtype=np.float32)
    gradients[:, :10] += 1
    last = run(Ftrl(l1=40.0), np.zeros(100, np.float32), gradients, 0.1, fused=fused)[-1]
    assert (last[:10] < 0).all()
    assert (last[10:] == 0).mean() > 0.9


@both
def test_a_changing_rate_moves_no_number_by_itself(run: Run, fused: bool) -> None:
    """Pushes without a gradient leave w as it is at any rate, and one at rate 0 too, whatever its gradient."""
    rng, states = np.random.default_rng(4), (np.zeros(20, np.float32), np.zeros(20, np.float32))
    w = run(Ftrl(), np.zeros(20, np.float32), rng.standard_normal((9, 20), dtype=np.float32), 0.3, states, fused)[-1]
    still = np.zeros((1, 20), np.float32)
    np.testing.assert_allclose(run(Ftrl(), w, still, 0.003, states, fused)[0], w, rtol=1e-5)
    pushed = rng.standard_normal((1, 20), dtype=np.float32)
    np.testing.assert_allclose(run(Ftrl(), w, pushed, 0.0, states, fused)[0], w, rtol=1e-5)


@both
def test_without_penalties_and_beta_it_is_adagrad_at_any_schedule(run: Run, fused: bool) -> None:
    rng = np.random.default_rng(5)
    ours = theirs = rng.standard_normal(30, dtype=np.float32)
    states, sums = (np.zeros(30, np.float32), np.zeros(30, np.float32)), (np.zeros(30, np.float32),)
    for rate in np.linspace(0.2, 0.0, 25):
        g = rng.standard_normal((1, 30), dtype=np.float32)
        ours = run(Ftrl(beta=0.0), ours, g, float(rate), states, fused)[0]
        theirs = run(Adagrad(), theirs, g, float(rate), sums, fused)[0]
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
