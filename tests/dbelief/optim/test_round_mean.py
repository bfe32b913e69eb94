"""The mean of a round's gradients: its compiled loop has the bits of NumPy's operations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.optim.apply import FEW
from dbelief.optim.round_mean import round_mean, warm_up
from tests.examples import examples


@examples(40)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 500)), min_size=1, max_size=7))
def test_one_more_number_changes_no_bit_of_the_others(pushes: list[tuple[int, int]]) -> None:
    """Up to `FEW` numbers NumPy computes, beyond them the loop; each number is computed by itself."""
    warm_up(FEW + 1)
    gradients = []
    for _, seed in pushes:
        rng = np.random.default_rng(seed)
        exponents = rng.integers(-44, 37, FEW + 1)
        gradients.append((rng.standard_normal(FEW + 1) * 10.0**exponents).astype(np.float32))
    weights = [samples for samples, _ in pushes]
    by_loop, _ = round_mean(FEW + 1, [(one, weight, ()) for one, weight in zip(gradients, weights, strict=True)])
    by_numpy, _ = round_mean(FEW, [(one[:FEW], weight, ()) for one, weight in zip(gradients, weights, strict=True)])
    assert by_loop[:FEW].tobytes() == by_numpy.tobytes()
    if total := sum(weights):
        scaled = [one.astype(np.float64) * weight / total for one, weight in zip(gradients, weights, strict=True)]
        most = np.sum(np.abs(scaled), axis=0)
        assert np.all(np.abs(by_loop - np.sum(scaled, axis=0)) <= 8 * np.finfo(np.float32).eps * most + 2e-44)
    else:
        assert not by_loop.any()


def test_gradients_as_messages_have_them() -> None:
    """Read-only, and at any address."""
    numbers = np.random.default_rng(0).standard_normal(FEW + 1).astype(np.float32)
    message = b"x" + numbers.tobytes()
    gradient = np.frombuffer(message, np.float32, FEW + 1, 1)
    assert not gradient.flags.aligned
    assert not gradient.flags.writeable
    mean, _ = round_mean(FEW + 1, [(gradient, 3, ()), (numbers, 3, ())])
    np.testing.assert_array_equal(mean, numbers)


@pytest.mark.parametrize("wrong", [np.zeros(FEW, np.float32), np.zeros(FEW + 1, np.float64)])
def test_other_gradients_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"a gradient has \(\d+,\) numbers of float\d\d, must have 16385 of float32"):
        round_mean(FEW + 1, [(np.zeros(FEW + 1, np.float32), 1, ()), (wrong, 1, ())])
