"""Many matrix products of one shape, as one call of cuBLAS: the operands are told by lists of addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from dbelief.nn.model import Array

Math = Literal["float32", "tf32"]

N, T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
MODES: dict[Math, int] = {"float32": 0, "tf32": 3}  # CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH


class Matrices(NamedTuple):
    """Row-major float32 matrices of one shape.

    Attributes
    ----------
    addresses : uint64, on the device
        Of the first number of each.
    row
        Numbers from the start of one row to the next.
    transposed
        What is multiplied is the transpose of what lies there.
    """

    addresses: Array
    row: int
    transposed: bool = False


class Products:
    """C = A B for each of the lists' matrices.

    cuBLAS counts columns first, so that row-major C is its C^T = B^T A^T: the operands change places.

    Parameters
    ----------
    blas, handle
        CuPy's cuBLAS, and what gives the current device's handle to it.
    math
        "tf32" rounds what is multiplied to 10 bits of fraction for the tensor cores; sums are float32 in both.
        cuBLAS through CuPy takes lists of bfloat16 matrices in no call.
    """

    def __init__(self, blas: Any, handle: Callable[[], int], math: Math) -> None:
        self._blas, self._handle = blas, handle
        self._mode = MODES[math]
        self._one, self._zero = np.array(1, np.float32), np.array(0, np.float32)

    def __call__(self, rows: int, columns: int, inner: int, a: Matrices, b: Matrices, c: Matrices) -> None:
        """Write C (rows x columns) = A (rows x inner) B (inner x columns), on CuPy's current stream."""
        handle = self._handle()
        before = self._blas.getMathMode(handle)
        self._blas.setMathMode(handle, self._mode)
        try:
            self._blas.sgemmBatched(
                handle, T if b.transposed else N, T if a.transposed else N, columns, rows, inner,
                self._one.ctypes.data, b.addresses.data.ptr, b.row, a.addresses.data.ptr, a.row,
                self._zero.ctypes.data, c.addresses.data.ptr, c.row, len(c.addresses),
            )  # fmt: skip
        finally:
            self._blas.setMathMode(handle, before)


def cublas_products(xp: Any, math: Math) -> Products:
    """Make products of the cuBLAS that CuPy (`xp`) brings."""
    from cupy_backends.cuda.libs import cublas

    return Products(cublas, xp.cuda.device.get_cublas_handle, math)
