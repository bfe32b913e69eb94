"""A CUDA device that is not there: the kernels' own source compiled for the host, and what they need of CuPy.

`OnHost` stands for the module `cupy`, `ColumnsFirst` for cuBLAS. Arrays are NumPy's, with an address
where CuPy's have it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.nn.kernels.batched_gemm import Math, Products, RoundedProducts
from dbelief.nn.kernels.cuda import FOLDER

SHIM = Path(__file__).with_name("on_host.hpp")
COMPILED = Path(__file__).parents[4] / ".cache" / "kernels"
NAMES = "strips", "norms", "given", "rounded"
WRONG = {1: "not all threads reach the same barriers", 2: "an address is not aligned"}


class Array(np.ndarray):
    """A NumPy array that tells its address as CuPy's do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def array(values: np.ndarray) -> Array:
    """A copy that begins at a multiple of 64 bytes."""
    raw = np.empty(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    placed = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    placed[...] = values
    return placed.view(Array)


@functools.cache
def _library(options: tuple[str, ...]) -> ctypes.CDLL:
    """The kernels, compiled once for all processes that run tests."""
    launches = "".join(f'extern "C" auto* launch_{name} = &Launch<{name}>::run;\n' for name in NAMES)
    code = f"{SHIM.read_text()}\n{(FOLDER / 'blocks.cu').read_text()}\n{launches}"
    command = "g++", *options, "-O1", "-w", "-shared", "-fPIC"
    library = COMPILED / f"{hashlib.sha256(repr((command, code)).encode()).hexdigest()[:32]}.so"
    if not library.exists():
        COMPILED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=COMPILED) as folder:
            source, made = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
            source.write_text(code)
            subprocess.run([*command, "-o", str(made), str(source)], check=True, timeout=300)
            made.rename(library)
    return ctypes.CDLL(str(library))


class OnHost:
    """The part of `cupy` that `DeviceKernels` uses.

    Attributes
    ----------
    backwards
        The threads of a block run from the last to the first.
    launched
        Name and options of each kernel that ran.
    """

    def __init__(self, backwards: bool = False) -> None:
        self.backwards = backwards
        self.launched: list[tuple[str, tuple[str, ...]]] = []
        if shutil.which("g++") is None:
            pytest.skip("there is no g++ to compile the kernels for the host with")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return array(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 77, dtype))

    def asarray(self, values: np.ndarray) -> Array:
        return array(values)

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:
        return SimpleNamespace(get_function=lambda name: functools.partial(self._launch, name, options))

    def _launch(
        self, name: str, options: tuple[str, ...], grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]
    ) -> None:
        wrong = launched(name, options, grid, block, arguments, self.backwards)
        assert wrong == 0, WRONG[wrong]
        self.launched.append((name, options))


def launched(
    name: str,
    options: tuple[str, ...],
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arguments: Any,
    backwards: bool = False,
) -> int:
    """Run a kernel on NumPy's arrays and numbers: 0, or what is `WRONG`."""
    kinds = {np.int32: ctypes.c_int, np.int64: ctypes.c_longlong}
    types = [kinds.get(type(one), ctypes.c_void_p) for one in arguments]
    run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 3, *types).in_dll(_library(options), f"launch_{name}")
    values = (one.ctypes.data if isinstance(one, np.ndarray) else int(one) for one in arguments)
    return int(run(*grid, *block, backwards, *values))


class ColumnsFirst:
    """The part of cuBLAS that `Products` uses: C = op(A) op(B), all of them column-major, at the addresses told."""

    def __init__(self) -> None:
        self.mode = 5
        self.used: list[int] = []

    def getMathMode(self, handle: int) -> int:
        return self.mode

    def setMathMode(self, handle: int, mode: int) -> None:
        self.mode = mode

    def sgemmBatched(
        self, handle: int, a_op: int, b_op: int, m: int, n: int, k: int, alpha: int, a_list: int, a_lead: int,
        b_list: int, b_lead: int, beta: int, c_list: int, c_lead: int, count: int,
    ) -> None:  # fmt: skip
        assert (handle, _at(alpha, 1, 1, 1).item(), _at(beta, 1, 1, 1).item()) == (17, 1.0, 0.0)
        self.used.append(self.mode)
        for n_th in range(count):
            a, b, c = ((ctypes.c_uint64 * count).from_address(one)[n_th] for one in (a_list, b_list, c_list))
            left = _at(a, k, m, a_lead).T if a_op == 0 else _at(a, m, k, a_lead)
            right = _at(b, n, k, b_lead).T if b_op == 0 else _at(b, k, n, b_lead)
            _at(c, n, m, c_lead).T[...] = left @ right


def rounded_products(blas: ColumnsFirst | None = None) -> RoundedProducts:
    """Of bfloat16 numbers, widened for `ColumnsFirst`."""
    exact = products(blas=blas)

    def gemm(
        handle: int, a_op: int, b_op: int, m: int, n: int, k: int, alpha: int, a_list: int, a_kind: int, a_lead: int,
        b_list: int, b_kind: int, b_lead: int, beta: int, c_list: int, c_kind: int, c_lead: int, count: int,
        sums: int, algorithm: int,
    ) -> int:  # fmt: skip
        assert (a_kind, b_kind, c_kind, sums, algorithm) == (14, 14, 0, 68, -1)
        assert (handle, _at(alpha, 1, 1, 1).item(), _at(beta, 1, 1, 1).item()) == (17, 1.0, 0.0)
        for n_th in range(count):
            a, b, c = ((ctypes.c_uint64 * count).from_address(one)[n_th] for one in (a_list, b_list, c_list))
            assert a % 16 == b % 16 == 0, "cuBLAS takes none that begin elsewhere"
            left = _wide(a, k, m, a_lead).T if a_op == 0 else _wide(a, m, k, a_lead)
            right = _wide(b, n, k, b_lead).T if b_op == 0 else _wide(b, k, n, b_lead)
            _at(c, n, m, c_lead).T[...] = left @ right
        return 0

    return RoundedProducts(gemm, lambda: 17, exact)


def _wide(address: int, columns: int, rows: int, lead: int) -> np.ndarray:
    """[columns][rows] of a column-major bfloat16 matrix, as float32."""
    halves = np.ctypeslib.as_array((ctypes.c_uint16 * ((columns - 1) * lead + rows)).from_address(address))
    matrix = np.lib.stride_tricks.as_strided(halves, (columns, rows), (2 * lead, 2))
    return (matrix.astype(np.uint32) << 16).view(np.float32)


def products(math: Math = "float32", blas: ColumnsFirst | None = None) -> Products:
    return Products(blas or ColumnsFirst(), lambda: 17, math)


def _at(address: int, columns: int, rows: int, lead: int) -> np.ndarray:
    """[columns][rows]: a column-major matrix, columns `lead` numbers apart."""
    assert lead >= rows
    numbers = (ctypes.c_float * ((columns - 1) * lead + rows)).from_address(address)
    return np.lib.stride_tricks.as_strided(np.ctypeslib.as_array(numbers), (columns, rows), (4 * lead, 4))
