"""A stand-in for CuPy and two devices, by NumPy: strict where CuPy is, late and out of order where CUDA may be.

What it cannot show: time, and bits of cuBLAS, of CuPy's own reductions and of a device's transcendental functions; a
kernel's threads run one after the other; the operands of a product by lists of addresses are checked for bounds and
device, not for order between streams.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dbelief.nn.kernels import batched_gemm

from . import operators as operators
from .functions import Functions
from .kernels import RawModule
from .machine import Device, Event, Machine, Module, Pool, Stream, elapsed_ms, pinned
from .products import HANDLE, Blas


def modules(machine: Machine, blas: Blas) -> dict[str, ModuleType]:
    """What `sys.modules` holds of CuPy."""

    def bound(kind: Any) -> Any:
        return functools.partial(kind, machine)

    runtime = Module(
        "cupy.cuda.runtime",
        getDeviceCount=lambda: machine.devices,
        getDevice=lambda: machine.device,
        getDeviceProperties=lambda number: {"name": f"Stand-in {number}".encode()},
    )
    device = Module("cupy.cuda.device", get_cublas_handle=lambda: HANDLE + machine.device, Device=bound(Device))
    cuda = Module(
        "cupy.cuda",
        runtime=runtime,
        device=device,
        Device=bound(Device),
        Stream=bound(Stream),
        Event=bound(Event),
        get_current_stream=machine.stream,
        get_elapsed_time=elapsed_ms,
        alloc_pinned_memory=bound(pinned),
    )
    cupy = Module(
        "cupy",
        cuda=cuda,
        RawModule=bound(RawModule),
        get_default_memory_pool=lambda: Pool(machine),
        **Functions(machine).members(),
    )
    libraries = Module("cupy_backends.cuda.libs", cublas=blas.module())
    backends = Module("cupy_backends", cuda=Module("cupy_backends.cuda", libs=libraries))
    found = cupy, cuda, runtime, device, backends, backends.cuda, libraries, libraries.cublas
    return {module.__name__: module for module in found}


@contextmanager
def standing_in(devices: int = 1, **options: Any) -> Iterator[Machine]:
    """Put a machine with so many devices where CuPy would be; for `options` see `Machine`.

    Raises
    ------
    AssertionError
        At the end: what was a mistake on the way, though nobody may have seen it raised.
    """
    machine = Machine(devices, **options)
    blas = Blas(machine)
    with pytest.MonkeyPatch.context() as patch:
        for name in [one for one in sys.modules if one.partition(".")[0] in ("cupy", "cupy_backends")]:
            patch.delitem(sys.modules, name)
        for name, module in modules(machine, blas).items():
            patch.setitem(sys.modules, name, module)
        # cuBLAS itself is a shared library that CuPy has loaded.
        extended = SimpleNamespace(cublasGemmBatchedEx=functools.partial(blas.gemmBatchedEx))
        patch.setattr(batched_gemm, "_loaded", lambda name: name)
        patch.setattr(batched_gemm, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": lambda name: extended}))
        yield machine
    assert not machine.order.mistakes, machine.order.mistakes
