"""The kernels on the device that a backend stands for."""

from __future__ import annotations

from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend

from .batched_gemm import Math, cublas_products
from .blocks import Blocks
from .device import DeviceKernels
from .host import HostKernels

Kernels = HostKernels | DeviceKernels
"""Wx, W^T y, y x^T and |W| of one layer for batches of one size (`HostKernels` has the formulas)."""


def make_kernels(
    blocks: Blocks, batch: int, backend: Backend, dtype: Any = np.float32, math: Math = "float32"
) -> Kernels:
    """Make the kernels, and all buffers that they need.

    Parameters
    ----------
    dtype
        float32; on the host float64 also.
    math : "float32", "tf32" or "bf16"
        How a device multiplies (`Products`); the host's is always that of `dtype`.
    """
    kind = np.dtype(dtype)
    if kind not in ((np.float32, np.float64) if backend.name == "numpy" else (np.float32,)):
        raise ValueError(f"dtype is {kind}, which the kernels of {backend.name} do not have")
    if backend.name == "numpy":
        return HostKernels(blocks, batch, kind)
    return DeviceKernels(blocks, batch, backend.xp, cublas_products(backend.xp, math))
