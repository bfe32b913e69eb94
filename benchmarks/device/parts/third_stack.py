"""One update of the third stack of the 11.2 G network (benchmarks/workers/third_stack.py), beside its roof.

The roof is its operations over the peak of float32 products, as a large square product reaches it in the same process.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.device.findings import Findings
from benchmarks.workers import third_stack
from dbelief.arrays.backend import Backend, device_bytes, select_backend
from dbelief.nn import SparseAutoencoder
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.tools.bench import kernels

ROUNDS = 3
SMALL = {"side": 16, "window": 8, "maps": 2, "batch": 4, "rounds": 1}
SMALL_SIDE = 64
VECTORS = 3
"""As long as the weights: they, their gradient, their velocity."""


def measure(found: Findings, small: bool) -> None:
    """Time the updates, where they fit the device's memory."""
    backend = select_backend("cuda")
    sizes = SMALL if small else {**third_stack.SIZES, "rounds": ROUNDS}
    needed, there = needed_bytes(sizes, backend), device_bytes(backend)[0]
    if needed > there:
        found.left_out("third_stack", f"it needs {needed / 1e9:.0f} GB at least, the device has {there / 1e9:.0f} GB")
        return
    peak = square_product(SMALL_SIDE if small else kernels.SQUARE[backend.name], backend)
    row = third_stack.measure(**sizes, backend=backend)
    found.figure("an update", 1e3 * row["median_s"], "ms", {"roof": 1e3 * row["operations"] / peak})
    found.figure("its operations", row["operations_per_s"] / 1e12, "Tflop/s", {"square product": peak / 1e12})


def needed_bytes(sizes: dict[str, int], backend: Backend) -> int:
    """Memory without what a step computes on the way."""
    side, maps = sizes["side"], sizes["maps"]
    model = SparseAutoencoder((side, side, maps), Eq1(window=sizes["window"], maps=maps), backend)
    return VECTORS * 4 * math.prod(model.blocks.w_shape)


def square_product(side: int, backend: Backend) -> float:
    """Operations per second of the fastest of some products of two float32 matrices."""
    xp = backend.xp
    square: Any = backend.to_device(np.random.default_rng(0).random((side, side), dtype=np.float32))
    product = xp.empty((side, side), np.float32)
    seconds = kernels.in_turns({"square": lambda: xp.matmul(square, square, out=product)}, ROUNDS, backend)
    return 2 * side**3 / min(seconds["square"])
