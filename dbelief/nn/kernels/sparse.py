"""Products of sparse rows with a dense matrix, by compiled loops on one core.

Sums run over a row's columns, and over the rows, in their order, in float32: the same bits at each call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.nn.sparse_rows import SparseRows

u64 = np.uint64  # of places: numba makes of signed ones, which may count from the end, no vector code
_ROWS = "read int64", "read int32", "read float32"


def times(x: SparseRows, weight: np.ndarray, y: np.ndarray) -> None:
    """Write y = x W.

    Parameters
    ----------
    x : SparseRows, shape (m, features)
    weight : float32, shape (features, units), C-contiguous
    y : float32, shape (m, units), C-contiguous

    Raises
    ------
    ValueError
        The shapes do not fit. Columns are not checked.

    Notes
    -----
    Cost: `units` numbers of W are read for each number of x.
    """
    _check(x, weight, y)
    _times(x.indptr, x.columns, x.values, weight.reshape(-1), y.reshape(-1), weight.shape[1])


def transposed_times(x: SparseRows, dy: np.ndarray, out: np.ndarray) -> None:
    """Write out = x^T dy; arrays as `weight` and `y` of `times`, `dy` being y and `out` the weight.

    Raises
    ------
    ValueError
        See `times`.

    Notes
    -----
    Cost: `out` is set to 0 as a whole, 4 * features * units bytes written; then `units` numbers of it are changed for
    each number of x. What reads the gradient afterwards reads all of it too.
    """
    _check(x, out, dy)
    out.fill(0)
    _add_transposed(x.indptr, x.columns, x.values, dy.reshape(-1), out.reshape(-1), out.shape[1])


def _check(x: SparseRows, weight: np.ndarray, y: np.ndarray) -> None:
    if weight.shape != (x.features, y.shape[1]) or len(y) != len(x):
        raise ValueError(f"rows of shape {x.shape}, a matrix of {weight.shape} and rows of {y.shape} do not fit")
    if not (weight.flags.c_contiguous and y.flags.c_contiguous):
        raise ValueError("the matrix and the dense rows must be C-contiguous")


@kernel(*_ROWS, "read float32", "write float32", "int64", "void")
def _times(indptr: Any, columns: Any, values: Any, weight: Any, y: Any, units: Any) -> None:
    for row in range(indptr.size - 1):
        here = u64(row * units)
        for unit in range(units):
            y[u64(here + u64(unit))] = 0
        for place in range(indptr[row], indptr[row + 1]):
            value, first = values[place], u64(columns[place] * units)
            for unit in range(units):
                y[u64(here + u64(unit))] += value * weight[u64(first + u64(unit))]


@kernel(*_ROWS, "read float32", "write float32", "int64", "void")
def _add_transposed(indptr: Any, columns: Any, values: Any, dy: Any, out: Any, units: Any) -> None:
    for row in range(indptr.size - 1):
        here = u64(row * units)
        for place in range(indptr[row], indptr[row + 1]):
            value, first = values[place], u64(columns[place] * units)
            for unit in range(units):
                out[u64(first + u64(unit))] += value * dy[u64(here + u64(unit))]
