import numpy as np
import pytest

from dbelief.optim.rules.adam import Adam
from tests.dbelief.optim.conftest import Run


def test_against_the_paper_line_by_line(run: Run) -> None:
    """Kingma and Ba 2015, Algorithm 1, written out with its own bias-corrected moments."""
    rng = np.random.default_rng(0)
    gradients, rate, beta1, beta2, eps = rng.standard_normal((40, 5)), 0.01, 0.8, 0.95, 1e-3
    w, m, v, expected = np.zeros(5), np.zeros(5), np.zeros(5), []
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        w = w - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        expected.append(w)
    walked = run(Adam(beta1, beta2, eps), np.zeros(5), gradients, rate, fused=False)
    np.testing.assert_allclose(walked, expected, rtol=1e-12, atol=1e-15)


def test_steps_count_from_one() -> None:
    arrays = [np.zeros(1, np.float32) for _ in range(4)]
    with pytest.raises(ValueError, match="step is 0"):
        Adam().apply(arrays[0], arrays[1], (arrays[2], arrays[3]), np.float32(1.0), 0)
