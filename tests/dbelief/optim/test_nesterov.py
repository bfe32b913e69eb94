import numpy as np

from dbelief.optim.rules.momentum import Nesterov
from tests.dbelief.optim.conftest import Run


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
