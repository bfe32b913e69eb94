from collections.abc import Callable

import numpy as np
import pytest

from dbelief.optim.sgd import SGD

Run = Callable[..., np.ndarray]


def test_by_hand(run: Run) -> None:
    w0, gradients = np.array([1.0, 2.0], np.float32), np.array([[2.0, -4.0], [1.0, 0.0]], np.float32)
    np.testing.assert_array_equal(run(SGD(), w0, gradients, 0.5), [[0.0, 4.0], [-0.5, 4.0]])


def test_product_and_difference_are_rounded_separately(run: Run) -> None:
    """A fused multiply-add would give -2^-24 here, and so would not match NumPy."""
    rate = np.float32(1 + 2**-12)
    gradient = np.array([[1 + 2**-12]], np.float32)
    w0 = np.array([np.float32(rate * gradient[0, 0])])
    assert run(SGD(), w0, gradient, rate)[0, 0] == 0.0


def test_a_decay_is_a_pull_towards_zero_in_closed_form(run: Run) -> None:
    """Without gradients w shrinks by 1 - rate weight_decay each time."""
    walked = run(SGD(weight_decay=0.5), np.array([8.0, -4.0]), np.zeros((3, 2)), 1.0, fused=False)
    np.testing.assert_array_equal(walked, [[4.0, -2.0], [2.0, -1.0], [1.0, -0.5]])


def test_a_decay_is_the_gradient_of_a_penalty(run: Run) -> None:
    """On h/2 (w - c)^2 with decay d it comes to rest where the penalised loss has its minimum, h c / (h + d)."""
    h, c, decay, rate = np.array([0.5, 1.0, 2.0]), np.array([3.0, -1.0, 0.5]), 0.25, 0.3
    w, rule = np.zeros(3), SGD(weight_decay=decay)
    for step in range(1, 400):
        rule.apply_reference(np, w, h * (w - c), (), rate, step)
    np.testing.assert_allclose(w, h * c / (h + decay), rtol=1e-12)


@pytest.mark.parametrize("decay", [-0.1, float("inf"), float("nan")])
def test_a_decay_out_of_range(decay: float) -> None:
    with pytest.raises(ValueError, match="sgd: weight_decay is"):
        SGD(weight_decay=decay)
