"""Row-wise Adagrad: by hand, its loop against its formula, and rows that do not see each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.optim.rules.adagrad import Adagrad
from dbelief.optim.rules.row_adagrad import RowAdagrad
from tests.examples import examples

RATE = np.float32(0.1)


def test_a_step_by_hand() -> None:
    """mean(3^2, 4^2) = 12.5, and 3.5 more at the start: the root is 4."""
    w, sums = np.array([1, 2, 5, 5], np.float32), np.array([3.5, 0], np.float32)
    RowAdagrad(eps=1.0).apply(w, np.array([3, 4, 0, 0], np.float32), (sums,), np.float32(0.5), 1)
    np.testing.assert_allclose(w, [1 - 0.5 * 3 / 5, 2 - 0.5 * 4 / 5, 5, 5], rtol=1e-6)
    np.testing.assert_array_equal(sums, [16, 0])


def test_a_row_of_one_number_is_adagrad() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = (rng.standard_normal(50).astype(np.float32),) * 2
    ours, theirs, sums, squares = ours.copy(), theirs.copy(), np.zeros(50, np.float32), np.zeros(50, np.float32)
    for step in range(1, 20):
        g = rng.standard_normal(50, dtype=np.float32)
        RowAdagrad().apply(ours, g, (sums,), RATE, step)
        Adagrad().apply(theirs, g, (squares,), RATE, step)
    np.testing.assert_array_equal(sums, squares)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(0, 9), st.integers(1, 33), st.sampled_from([0.0, 1e-8]))
def test_the_compiled_loop_gives_the_bits_of_the_formula(seed: int, rows: int, width: int, eps: float) -> None:
    rng = np.random.default_rng(seed)
    w, g = (np.ldexp(rng.standard_normal(rows * width), rng.integers(-30, 30)).astype(np.float32) for _ in range(2))
    g[rng.random(g.size) < 0.3] = 0
    sums = abs(rng.standard_normal(rows)).astype(np.float32) * np.float32(rng.integers(0, 2))
    w_formula, sums_formula, rule = w.copy(), sums.copy(), RowAdagrad(eps=eps)
    rule.apply(w, g, (sums,), RATE, 1)
    rule.apply_reference(np, w_formula.reshape(rows, width), g, (sums_formula,), RATE, 1)
    np.testing.assert_array_equal(sums.view(np.uint32), sums_formula.view(np.uint32))
    np.testing.assert_array_equal(w.view(np.uint32), w_formula.view(np.uint32))


@pytest.mark.parametrize(("w", "g", "rows"), [(6, 5, 2), (7, 7, 2), (4, 4, 0)])
def test_lengths_that_do_not_fit_are_refused(w: int, g: int, rows: int) -> None:
    arrays = np.zeros(w, np.float32), np.zeros(g, np.float32), (np.zeros(rows, np.float32),)
    with pytest.raises(ValueError, match=f"{w} numbers and {g} of a gradient are not {rows} rows"):
        RowAdagrad().apply(*arrays, RATE, 1)
