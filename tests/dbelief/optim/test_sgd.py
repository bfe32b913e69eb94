from collections.abc import Callable

import numpy as np

from dbelief.optim.sgd import SGD

Run = Callable[..., np.ndarray]


def test_by_hand(run: Run) -> None:
    w0, gradients = np.array([1.0, 2.0], np.float32), np.array([[2.0, -4.0], [1.0, 0.0]], np.float32)
    np.testing.assert_array_equal(run(SGD(), w0, gradients, 0.5), [[0.0, 4.0], [-0.5, 4.0]])


def test_one_rounding_for_the_product_and_one_for_the_difference(run: Run) -> None:
    """A fused multiply-add would give -2^-24 here, and so would not match NumPy."""
    rate = np.float32(1 + 2**-12)
    gradient = np.array([[1 + 2**-12]], np.float32)
    w0 = np.array([np.float32(rate * gradient[0, 0])])
    assert run(SGD(), w0, gradient, rate)[0, 0] == 0.0
