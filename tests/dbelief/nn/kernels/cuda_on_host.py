"""A CUDA device that is not there: the kernels' own source compiled for the host, and what they need of CuPy.

`OnHost` stands for the module `cupy`, `multiply` for cuBLAS. Arrays are NumPy's, with an address where CuPy's have it.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.nn.kernels.cuda import FOLDER
from dbelief.nn.kernels.products import Matrices

SHIM = Path(__file__).with_name("on_host.hpp")
NAMES = "strips", "norms", "given"
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
    launches = "".join(f'extern "C" auto* launch_{name} = &Launch<{name}>::run;\n' for name in NAMES)
    with tempfile.TemporaryDirectory() as folder:
        code, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        code.write_text(f"{SHIM.read_text()}\n{(FOLDER / 'blocks.cu').read_text()}\n{launches}")
        flags = "-O1", "-w", "-shared", "-fPIC", "-o", str(library)
        subprocess.run(["g++", *options, *flags, str(code)], check=True, timeout=100)
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
        return array(np.full(shape, np.nan, dtype))

    def asarray(self, values: np.ndarray) -> Array:
        return array(values)

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:
        return SimpleNamespace(get_function=lambda name: functools.partial(self._launch, name, options))

    def _launch(
        self, name: str, options: tuple[str, ...], grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]
    ) -> None:
        kinds = {np.int32: ctypes.c_int, np.int64: ctypes.c_longlong, Array: ctypes.c_void_p}
        types = [kinds[type(one)] for one in arguments]
        run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 3, *types).in_dll(_library(options), f"launch_{name}")
        values = (one.ctypes.data if isinstance(one, Array) else int(one) for one in arguments)
        wrong = run(*grid, *block, self.backwards, *values)
        assert wrong == 0, WRONG[wrong]
        self.launched.append((name, options))


def multiply(rows: int, columns: int, inner: int, a: Matrices, b: Matrices, c: Matrices) -> None:
    """C = A B, each list's matrices one by one, at the addresses it says."""
    assert len(a.addresses) == len(b.addresses) == len(c.addresses)
    for left, right, to in zip(a.addresses, b.addresses, c.addresses, strict=True):
        second = _at(right, columns, inner, b.row).T if b.transposed else _at(right, inner, columns, b.row)
        _at(to, rows, columns, c.row)[...] = _at(left, rows, inner, a.row) @ second


def _at(address: Any, rows: int, columns: int, row: int) -> np.ndarray:
    assert row >= columns
    numbers = (ctypes.c_float * ((rows - 1) * row + columns)).from_address(int(address))
    return np.lib.stride_tricks.as_strided(np.ctypeslib.as_array(numbers), (rows, columns), (4 * row, 4))
