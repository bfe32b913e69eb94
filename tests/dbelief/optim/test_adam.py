from collections.abc import Callable

import numpy as np
import pytest

from dbelief.optim.adam import Adam

Run = Callable[..., np.ndarray]


def test_the_first_step_is_rate_times_sign_up_to_eps(run: Run) -> None:
    gradient = np.array([[3.0, -0.01, 1e4]])
    first = run(Adam(eps=0.0), np.zeros(3), gradient, 0.1, fused=False)
    np.testing.assert_allclose(first, -0.1 * np.sign(gradient), rtol=1e-14)


def test_a_constant_gradient_steps_evenly(run: Run) -> None:
    """The corrections make both moments exact for a constant gradient: each step is rate g / (|g| + eps)."""
    walked = run(Adam(eps=0.5), np.zeros(1), np.full((50, 1), 2.0), 0.1, fused=False)
    np.testing.assert_allclose(walked[:, 0], -0.1 * 2.0 / 2.5 * np.arange(1, 51), rtol=1e-12)


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


def test_the_step_count_is_the_segments_own() -> None:
    """A later step corrects less: with a step count of a million nothing is left to correct."""
    moved = []
    for step in (1, 1_000_000):
        w, states = np.zeros(1, np.float32), (np.zeros(1, np.float32), np.zeros(1, np.float32))
        Adam().apply(w, np.ones(1, np.float32), states, np.float32(1.0), step)
        moved.append(float(w[0]))
    assert moved == pytest.approx([-1.0, -0.1 / 0.001**0.5], rel=1e-5)


def test_steps_count_from_one() -> None:
    arrays = [np.zeros(1, np.float32) for _ in range(4)]
    with pytest.raises(ValueError, match="step is 0"):
        Adam().apply(arrays[0], arrays[1], (arrays[2], arrays[3]), np.float32(1.0), 0)


@pytest.mark.parametrize("options", [{"beta1": 1.0}, {"beta2": -0.1}, {"eps": -1e-8}])
def test_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"adam: {next(iter(options))} is "):
        Adam(**options)
