"""Matrix products as CuPy hands them to cuBLAS, and the calls of cuBLAS itself that the product makes, by NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .array import copy_into, empty, launch, ndarray
from .machine import Machine, Module
from .order import Access

HANDLE = 17
FLOAT = 4


def matmul(machine: Machine, a: Any, b: Any, out: ndarray | None = None) -> ndarray:
    """`cupy.matmul` of two matrices: into another array first where `out` is not in one piece, as CuPy does."""
    for one in (a, b):
        if not isinstance(one, ndarray):
            raise TypeError(f"Unsupported type {type(one)}")
    if (a.ndim, b.ndim) != (2, 2):
        raise AttributeError("the stand-in for CuPy multiplies matrices alone")
    if out is None or out.flags.c_contiguous:
        return dot(machine, a, b, out)
    copy_into(machine, out, dot(machine, a, b))
    return out


def dot(machine: Machine, a: Any, b: Any, out: ndarray | None = None) -> ndarray:
    """`cupy.dot` of two vectors or two matrices."""
    for one in (a, b):
        if not isinstance(one, ndarray):
            raise TypeError(f"Unsupported type {type(one)}")
    if a.shape[-1] != b.shape[0]:
        raise ValueError("Axis dimension mismatch")
    shape = a.shape[:-1] + b.shape[1:]
    made = empty(machine, shape, np.result_type(a.dtype, b.dtype)) if out is None else out
    if made.dtype != np.result_type(a.dtype, b.dtype):
        raise ValueError("Not supported dtype combination.")
    if made.shape != shape:
        raise ValueError("Output array has an invalid size")
    if not made.flags.c_contiguous:
        raise ValueError("Output array must be C-contiguous")
    a, b = (one if one.flags.c_contiguous or one.flags.f_contiguous else one.copy() for one in (a, b))
    launch(machine, "dot", lambda to, left, right: np.copyto(to, left @ right), [made], [a, b])
    return made


class Blas:
    """What `DeviceKernels` asks of cuBLAS: C = op(A) op(B), column-major, by lists of addresses on the device.

    Attributes
    ----------
    mode
        How it multiplies.
    used
        Of each call.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.mode = 5
        self.used: list[int] = []

    def module(self) -> Module:
        """`cupy_backends.cuda.libs.cublas`."""
        members = {name: getattr(self, name) for name in ("getMathMode", "setMathMode", "sgemmBatched", "getVersion")}
        return Module("cupy_backends.cuda.libs.cublas", **members)

    def getVersion(self, handle: int) -> int:
        return 130000

    def getMathMode(self, handle: int) -> int:
        return self.mode

    def setMathMode(self, handle: int, mode: int) -> None:
        self.mode = mode

    def sgemmBatched(
        self, handle: int, a_op: int, b_op: int, m: int, n: int, k: int, alpha: int, a_list: int, a_lead: int,
        b_list: int, b_lead: int, beta: int, c_list: int, c_lead: int, count: int,
    ) -> None:  # fmt: skip
        a, b = (a_list, a_op, a_lead, FLOAT), (b_list, b_op, b_lead, FLOAT)
        self._submit("sgemmBatched", handle, (m, n, k), (alpha, beta), a, b, (c_list, c_lead), count)

    def gemmBatchedEx(
        self, handle: int, a_op: int, b_op: int, m: int, n: int, k: int, alpha: int, a_list: int, a_kind: int,
        a_lead: int, b_list: int, b_kind: int, b_lead: int, beta: int, c_list: int, c_kind: int, c_lead: int,
        count: int, sums: int, algorithm: int,
    ) -> int:  # fmt: skip
        assert (a_kind, b_kind, c_kind, sums, algorithm) == (14, 14, 0, 68, -1), "cuBLAS has no such product"
        a, b = (a_list, a_op, a_lead, 2), (b_list, b_op, b_lead, 2)
        self._submit("gemmBatchedEx", handle, (m, n, k), (alpha, beta), a, b, (c_list, c_lead), count)
        return 0

    def _submit(
        self, name: str, handle: int, shape: tuple[int, int, int], factors: tuple[int, int], a: tuple[int, ...],
        b: tuple[int, ...], c: tuple[int, int], count: int,
    ) -> None:  # fmt: skip
        machine, device, (m, n, k) = self._machine, self._machine.device, shape
        assert handle == HANDLE + device, f"{name}: the handle is another device's"
        assert [_host_float(one) for one in factors] == [1.0, 0.0], f"{name}: other factors than 1 and 0"
        columns = a[2] - (m, k)[a[1]], b[2] - (k, n)[b[1]], c[1] - m
        assert min(columns) >= 0, f"{name}: columns overlap"
        self.used.append(self.mode)
        lists = [machine.memory.at(one, 8 * count, device, f"{name}: a list of matrices") for one in (a[0], b[0], c[0])]

        def matrices() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
            found = []
            for ends in zip(*(one.view(np.uint64).tolist() for one in lists), strict=True):
                left = self._matrix(ends[0], *((k, m) if a[1] == 0 else (m, k)), a[2], a[3], device)
                right = self._matrix(ends[1], *((n, k) if b[1] == 0 else (k, n)), b[2], b[3], device)
                found.append(
                    (
                        left.T if a[1] == 0 else left,
                        right.T if b[1] == 0 else right,
                        self._matrix(ends[2], n, m, c[1], FLOAT, device).T,
                    )
                )
            return found

        def run() -> None:
            for left, right, to in matrices():
                np.copyto(to, _wide(left) @ _wide(right))

        machine.launch(name, run, self._accesses(lists))

    def _accesses(self, lists: list[np.ndarray]) -> list[Access]:
        return [access for one in lists for access in self._machine.memory.access(one, False)]

    def _matrix(self, address: int, columns: int, rows: int, lead: int, itemsize: int, device: int) -> np.ndarray:
        """[columns][rows] of a column-major matrix."""
        assert itemsize == FLOAT or address % 16 == 0, "cuBLAS takes no such matrices that begin elsewhere"
        numbers = self._machine.memory.at(address, itemsize * ((columns - 1) * lead + rows), device, "a matrix")
        typed = numbers.view(np.float32 if itemsize == FLOAT else np.uint16)
        return np.lib.stride_tricks.as_strided(typed, (columns, rows), (itemsize * lead, itemsize))


def _wide(matrix: np.ndarray) -> np.ndarray:
    if matrix.dtype == np.float32:
        return matrix
    return (matrix.astype(np.uint32) << 16).view(np.float32)


def _host_float(address: int) -> float:
    return ctypes.c_float.from_address(address).value
