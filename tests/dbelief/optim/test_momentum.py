from collections.abc import Callable

import numpy as np
import pytest

from dbelief.optim.momentum import Momentum
from dbelief.optim.sgd import SGD

Run = Callable[..., np.ndarray]


def test_by_hand(run: Run) -> None:
    w0, gradients = np.array([1.0], np.float32), np.array([[2.0], [0.0], [4.0]], np.float32)
    # v = 2, 1, 4.5 with mu = 1/2
    np.testing.assert_array_equal(run(Momentum(0.5), w0, gradients, 1.0), [[-1.0], [-2.0], [-6.5]])


def test_without_mu_it_is_sgd(run: Run) -> None:
    rng = np.random.default_rng(0)
    w0, gradients = rng.standard_normal(40, dtype=np.float32), rng.standard_normal((9, 40), dtype=np.float32)
    np.testing.assert_array_equal(run(Momentum(0.0), w0, gradients, 0.1), run(SGD(), w0, gradients, 0.1))


def test_a_constant_gradient_in_closed_form(run: Run) -> None:
    """v_k = g (1 - mu^k) / (1 - mu), so w moves by rate g (k - mu (1 - mu^k) / (1 - mu)) / (1 - mu)."""
    mu, rate, g, k = 0.9, 0.01, 3.0, np.arange(1, 101)
    expected = -rate * g * (k - mu * (1 - mu**k) / (1 - mu)) / (1 - mu)
    walked = run(Momentum(mu), np.zeros(1), np.full((100, 1), g), rate, fused=False)
    np.testing.assert_allclose(walked[:, 0], expected, rtol=1e-12)


def test_a_change_of_rate_acts_on_the_whole_velocity() -> None:
    """The sense of torch, not Caffe's."""
    w, v, rule = np.zeros(1, np.float32), (np.zeros(1, np.float32),), Momentum(0.5)
    rule.apply(w, np.ones(1, np.float32), v, np.float32(1.0), 1)
    rule.apply(w, np.zeros(1, np.float32), v, np.float32(0.0), 2)
    assert w[0] == -1.0


@pytest.mark.parametrize("mu", [-0.1, 1.0, float("nan")])
def test_mu_out_of_range(mu: float) -> None:
    with pytest.raises(ValueError, match="momentum: mu is"):
        Momentum(mu)
