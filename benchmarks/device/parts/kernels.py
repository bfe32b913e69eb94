"""`dbelief bench kernels` on the device, with each way of multiplying: shares of a dense product, and of the roof."""

from __future__ import annotations

from typing import get_args

from benchmarks.device.findings import Findings
from dbelief.arrays.backend import select_backend
from dbelief.nn.kernels import Blocks
from dbelief.nn.kernels.batched_gemm import Math
from dbelief.tools.bench import kernels

LARGE = Blocks(rows=20, columns=20, window=5, depth=48, neurons=128), 96, 15
"""Blocks, samples and rounds: those of `dbelief bench kernels`."""
SMALL = Blocks(rows=5, columns=4, window=3, depth=4, neurons=3), 8, 2
SMALL_SIDE = 64


def measure(found: Findings, small: bool) -> None:
    """Time them against the dense product of as many operations, in the same rounds."""
    backend = select_backend("cuda")
    blocks, batch, rounds = SMALL if small else LARGE
    side = SMALL_SIDE if small else kernels.SQUARE[backend.name]
    for math in get_args(Math):
        results = kernels.measure(blocks, batch, rounds, backend, threads=1, math=math, side=side)
        for name, one in results.items():
            title = f"{kernels.NAMES.get(name, 'tall product')}, {math}"
            shares = {"over the tall product's": one.x, "of the roof": one.of_roof}
            found.figure(title, one.operations / one.seconds / 1e12, "Tflop/s", shares)
