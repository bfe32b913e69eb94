"""Products of sparse rows: those of NumPy on the same rows in an array, and of SciPy's sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dbelief.nn import SparseRows
from dbelief.nn.kernels import sparse
from tests.examples import examples


@st.composite
def products(draw: Any) -> tuple[SparseRows, np.ndarray, np.ndarray]:
    """Rows, with empty ones and empty columns among them, and two matrices of a seed."""
    rows, features, units = draw(st.integers(0, 9)), draw(st.integers(1, 30)), draw(st.integers(1, 17))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    x = rng.standard_normal((rows, features)) * (rng.random((rows, features)) < draw(st.sampled_from([0.0, 0.2, 1.0])))
    return rows_of(x), numbers(rng, features, units), numbers(rng, rows, units)


def rows_of(x: np.ndarray) -> SparseRows:
    kept = csr_array(x.astype(np.float32))
    return SparseRows(kept.indptr.astype(np.int64), kept.indices.astype(np.int32), kept.data, x.shape[1])


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@examples(100)
@given(products())
def test_products_are_those_of_numpy_and_scipy(case: tuple[SparseRows, np.ndarray, np.ndarray]) -> None:
    x, weight, dy = case
    dense = x.dense().astype(np.float64)
    scipy = csr_array((x.values, x.columns, x.indptr), shape=x.shape)
    y, gradient = np.full_like(dy, np.nan), np.full_like(weight, np.nan)
    sparse.times(x, weight, y)
    np.testing.assert_allclose(y, dense @ weight.astype(np.float64), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(y, scipy @ weight)
    for _ in range(2):  # what was there before has no effect
        sparse.transposed_times(x, dy, gradient)
        np.testing.assert_allclose(gradient, dense.T @ dy.astype(np.float64), rtol=0, atol=1e-5)
        np.testing.assert_allclose(gradient, scipy.T @ dy, rtol=0, atol=1e-5)


def test_rows_need_not_begin_with_the_first_number() -> None:
    rng = np.random.default_rng(0)
    x = rows_of(rng.standard_normal((6, 5)) * (rng.random((6, 5)) < 0.5))
    weight, y, whole = numbers(rng, 5, 2), np.empty((3, 2), np.float32), np.empty((6, 2), np.float32)
    part = SparseRows(x.indptr[2:6], x.columns, x.values, 5)
    sparse.times(x, weight, whole)
    sparse.times(part, weight, y)
    np.testing.assert_array_equal(y, whole[2:5])
    np.testing.assert_array_equal(part.dense(), x.dense()[2:5])


@pytest.mark.parametrize(("weight", "y"), [((4, 2), (3, 2)), ((5, 2), (3, 3)), ((5, 2), (2, 2))])
def test_shapes_that_do_not_fit_are_refused(weight: tuple[int, int], y: tuple[int, int]) -> None:
    x = rows_of(np.eye(3, 5))
    for product in (sparse.times, lambda x, w, y: sparse.transposed_times(x, y, w)):
        with pytest.raises(ValueError, match=r"rows of shape \(3, 5\), a matrix of .* do not fit"):
            product(x, np.zeros(weight, np.float32), np.zeros(y, np.float32))
        with pytest.raises(ValueError, match="C-contiguous"):
            product(x, np.zeros((5, 2), np.float32, order="F"), np.zeros((3, 2), np.float32))
