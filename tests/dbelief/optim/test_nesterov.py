from collections.abc import Callable

import numpy as np

from dbelief.optim.momentum import Nesterov
from dbelief.optim.sgd import SGD

Run = Callable[..., np.ndarray]


def test_by_hand(run: Run) -> None:
    w0, gradients = np.array([1.0], np.float32), np.array([[2.0], [0.0], [4.0]], np.float32)
    # v = 2, 1, 4.5 and g + v / 2 = 3, 0.5, 6.25 with mu = 1/2
    np.testing.assert_array_equal(run(Nesterov(0.5), w0, gradients, 1.0), [[-2.0], [-2.5], [-8.75]])


def test_without_mu_it_is_sgd(run: Run) -> None:
    rng = np.random.default_rng(0)
    w0, gradients = rng.standard_normal(40, dtype=np.float32), rng.standard_normal((9, 40), dtype=np.float32)
    np.testing.assert_array_equal(run(Nesterov(0.0), w0, gradients, 0.1), run(SGD(), w0, gradients, 0.1))


def test_it_is_the_look_ahead_seen_from_ahead(run: Run) -> None:
    """Sutskever et al. 2013 take the gradient at x + mu u, u <- mu u - rate g, x <- x + u: w is that x + mu u."""
    rng = np.random.default_rng(1)
    curvature, rate, mu = rng.uniform(0.5, 2.0, 6), 0.05, 0.8
    x, u, w = np.ones(6), np.zeros(6), np.ones(6)
    velocity, rule = (np.zeros(6),), Nesterov(mu)
    for step in range(1, 41):
        rule.apply_reference(np, w, curvature * w, velocity, rate, step)
        u = mu * u - rate * curvature * (x + mu * u)
        x = x + u
        np.testing.assert_allclose(w, x + mu * u, rtol=1e-10, atol=1e-12)
