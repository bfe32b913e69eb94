"""Many matrix products of one shape, as one call of cuBLAS: with lists of the operands' addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dbelief.nn.model import Array

Math = Literal["float32", "tf32", "bf16"]

N, T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
MODES: dict[Math, int] = {"float32": 0, "tf32": 3}  # CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH
F32, BF16, SUMS_F32, ANY_ALGORITHM = 0, 14, 68, -1  # CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
ALIGNMENT = 16
"""Bytes: the matrices of bfloat16 numbers that cuBLAS takes by lists begin at multiples of it."""


class Matrices(NamedTuple):
    """Row-major matrices of one shape: float32, or bfloat16 where they are multiplied by `RoundedProducts`.

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


class RoundedProducts:
    """C = A B with A and B in bfloat16, 7 bits of fraction; sums and C are float32.

    CuPy does not pass on the one call of cuBLAS that takes such matrices by lists, `cublasGemmBatchedEx`.

    Parameters
    ----------
    gemm, handle
        That function, and what gives the current device's handle.
    exact
        For matrices that begin elsewhere than cuBLAS takes them.
    """

    def __init__(self, gemm: Callable[..., int], handle: Callable[[], int], exact: Products) -> None:
        self._gemm, self._handle, self.exact = gemm, handle, exact
        self._one, self._zero = np.array(1, np.float32), np.array(0, np.float32)

    def __call__(self, rows: int, columns: int, inner: int, a: Matrices, b: Matrices, c: Matrices) -> None:
        """Write C (rows x columns) = A (rows x inner) B (inner x columns), on CuPy's current stream.

        Raises
        ------
        RuntimeError
            cuBLAS refuses; the message contains its status.
        """
        status = self._gemm(
            self._handle(), T if b.transposed else N, T if a.transposed else N, columns, rows, inner,
            self._one.ctypes.data, b.addresses.data.ptr, BF16, b.row, a.addresses.data.ptr, BF16, a.row,
            self._zero.ctypes.data, c.addresses.data.ptr, F32, c.row, len(c.addresses), SUMS_F32, ANY_ALGORITHM,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"cublasGemmBatchedEx ended with status {status}")


def cublas_products(xp: Any, math: Math) -> Products | RoundedProducts:
    """Make products of the cuBLAS that CuPy (`xp`) brings."""
    from cupy_backends.cuda.libs import cublas

    handle = xp.cuda.device.get_cublas_handle
    if math != "bf16":
        return Products(cublas, handle, math)
    cublas.getVersion(handle())  # the library is loaded by its first call
    gemm = ctypes.CDLL(_loaded("libcublas.so")).cublasGemmBatchedEx
    pointer, number = ctypes.c_void_p, ctypes.c_int
    matrices = pointer, number, number
    numbers = [number] * 5
    gemm.argtypes = [pointer, *numbers, pointer, *matrices, *matrices, pointer, *matrices, *[number] * 3]
    return RoundedProducts(gemm, handle, Products(cublas, handle, "float32"))


def _loaded(name: str) -> str:
    """Where a library that this process has loaded lies.

    Raises
    ------
    RuntimeError
        It has loaded none of that name.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if Path(path).name.startswith(name):
            return path
    raise RuntimeError(f"{name} is not loaded, and bf16 needs it")
