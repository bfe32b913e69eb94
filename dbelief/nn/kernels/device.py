"""The block-local kernels on a CUDA device: float32, or with bfloat16 operands of Wx and y x^T.

* Wx: each block's input is made one matrix (`strips` of `blocks.cu`; nc g / columns times as large as x, which is
  4.6 times in Coates et al.'s first layer), then all blocks are one call of cuBLAS. Strip by strip, as on the host,
  the products would not fill the device.
* y x^T: one call of cuBLAS over all blocks and segments, from x into w as they lie.
* W^T y: `given` of `blocks.cu`, output by output: no atomic addition, always the same bits.
* |W|: `norms` of `blocks.cu`, which reads w once.

For bfloat16 w, x and y are rounded into buffers first (`rounded`), half as large as they are.

Nothing is allocated in the steady state: the lists of addresses that cuBLAS takes are made when an array is seen
first, and remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dbelief.nn.model import Array

from .batched_gemm import ALIGNMENT, Matrices, Products, RoundedProducts
from .blocks import Blocks, row_length
from .cuda import choose_part, options, source

REMEMBERED = 64
"""Lists of addresses: far more than a layer's arrays have, and few enough where arrays are new at every call."""

F4 = np.dtype(np.float32)
BF16_BYTES = 2
THREADS = 256


class DeviceKernels:
    """Wx, W^T y, y x^T and |W| of one layer for batches of one size, and the buffers for them.

    Parameters
    ----------
    batch
        M.
    xp
        CuPy.
    multiply
        In float32, tf32 or bfloat16; W^T y is always float32.
    """

    def __init__(self, blocks: Blocks, batch: int, xp: Any, multiply: Products | RoundedProducts) -> None:
        self.blocks, self.batch = blocks, batch
        self._xp, self._multiply = xp, multiply
        self._part = choose_part(blocks.depth, batch)
        self._strips = xp.empty((blocks.nc, blocks.rows, blocks.segment, batch), F4)
        self._lists: dict[tuple[int | str, ...], Array] = {}
        self._modules: dict[int, Any] = {}
        self._halves: dict[str, Array] = {}

    def forward(self, w: Array, x: Array, y: Array) -> None:
        """Write y = W x, as `HostKernels.forward`."""
        b, m = self.blocks, self.batch
        b.check_weights("w", w, F4, whole=False)
        x_row, y_row = row_length("x", x, b.x_shape(m), F4), row_length("y", y, b.y_shape(m), F4)
        shape = b.rows, b.columns, b.window, b.depth, m, x_row
        self._run("strips", b.nc * b.rows, 256, (x, self._strips), shape, vector=self._vector([x], m, x_row))
        steps = b.neurons * b.fan_in, b.segment * m
        multiply, of = self._way(*steps)
        a, seen = of(w, b.fan_in, "w"), of(self._strips, m, "strips")
        multiply(b.neurons, m, b.fan_in, a, seen, self._list(y, y_row, "y"))

    def backward_data(self, w: Array, y: Array, x: Array) -> None:
        """Write x = W^T y, as `HostKernels.backward_data`."""
        b, m = self.blocks, self.batch
        b.check_weights("w", w, F4)
        x_row, y_row = row_length("x", x, b.x_shape(m), F4), row_length("y", y, b.y_shape(m), F4)
        count = b.rows * b.columns * self._part.count(b.depth, m)
        shape = b.rows, b.columns, b.window, b.depth, b.neurons, m, y_row, x_row
        vector = self._vector([w, y, x], b.depth, m, y_row, x_row)
        self._run("given", count, self._part.threads, (w, y, x), shape, vector)

    def backward_weight(self, y: Array, x: Array, w: Array) -> None:
        """Write w = y x^T where w has weights, as `HostKernels.backward_weight`: a batch of any size."""
        b, m = self.blocks, x.shape[-1]
        b.check_weights("w", w, F4)
        x_row, y_row = row_length("x", x, b.x_shape(m), F4), row_length("y", y, b.y_shape(m), F4)
        multiply, of = self._way(b.neurons * m, b.depth * m)
        left, right = of(y, y_row, "y by segment"), of(x, x_row, "x by segment")
        to = self._list(w, b.fan_in, "w by segment")
        multiply(b.neurons, b.segment, m, left, right._replace(transposed=True), to)

    def row_norms(self, w: Array, norms: Array) -> None:
        """Write the norm of each neuron's weights, [nr][nc][F]."""
        b = self.blocks
        b.check_weights("w", w, F4)
        if row_length("norms", norms, b.norms_shape, F4) != b.neurons:
            raise ValueError("norms must be C-contiguous")
        count, warps = math.prod(b.norms_shape), 8
        shape = np.int64(count), b.fan_in
        self._run("norms", math.ceil(count / warps), 32 * warps, (w, norms), shape, self._vector([w], b.fan_in))

    def _way(self, *steps: int) -> tuple[Products | RoundedProducts, Callable[[Array, int, str], Matrices]]:
        """What multiplies, and what gives it its operands, whose matrices are so many numbers apart in one piece."""
        multiply = self._multiply
        if isinstance(multiply, Products):
            return multiply, self._list
        if any(step * BF16_BYTES % ALIGNMENT for step in steps):
            return multiply.exact, self._list
        return multiply, self._rounded

    def _rounded(self, array: Array, row: int, which: str) -> Matrices:
        """Round an array whose rows are so far apart to bfloat16, and give its matrices."""
        n0, n1, *inner = array.shape
        n2, n3, s2 = (1, math.prod(inner), 0) if len(inner) > 2 else (*inner, row)
        half = self._halves.get(which)
        if half is None or half.shape != (n0, n1, n2, n3):
            half = self._halves[which] = self._xp.empty((n0, n1, n2, n3), np.uint16)
        s0, s1 = (np.int64(stride // F4.itemsize) for stride in array.strides[:2])
        shape = np.int64(half.size), n1, n2, np.int64(n3), s0, s1, s2
        self._run("rounded", math.ceil(half.size / THREADS), THREADS, (array, half), shape, vector=1)
        return self._list(half, row if n2 == 1 else n3, which)

    def _vector(self, arrays: list[Array], *lengths: int) -> int:
        """Numbers that can be moved at once: 4 where all arrays and their rows begin at multiples of 16 bytes."""
        return 1 if any(n % 4 for n in lengths) or any(a.data.ptr % 16 for a in arrays) else 4

    def _run(
        self, name: str, blocks: int, threads: int, arrays: tuple[Array, ...], shape: tuple[Any, ...], vector: int
    ) -> None:
        if vector not in self._modules:
            self._modules[vector] = self._xp.RawModule(code=source(), options=options(self._part, vector))
        kernel: Callable[..., None] = self._modules[vector].get_function(name)
        numbers = (n if isinstance(n, np.int64) else np.int32(n) for n in shape)
        kernel((blocks,), (threads,), (*arrays, *numbers))

    def _list(self, array: Array, row: int, which: str) -> Matrices:
        """Give the matrices in an array whose rows are so far apart, block by block."""
        key = array.data.ptr, row, which, array.itemsize, *array.strides[:2]
        if key not in self._lists:
            if len(self._lists) >= REMEMBERED:
                self._lists.clear()
            starts = self._starts(which, row * array.itemsize, array.strides, array.itemsize).ravel()
            self._lists[key] = self._xp.asarray((starts + array.data.ptr).astype(np.uint64))
        return Matrices(self._lists[key], row)

    def _starts(self, which: str, row: int, strides: tuple[int, ...], itemsize: int) -> np.ndarray:
        """Where the matrices begin, in bytes as a row and strides are: [nr][nc], "by segment" [nr][nc][g]."""
        b = self.blocks
        i, j, di = np.ix_(np.arange(b.nr), np.arange(b.nc), np.arange(b.window))
        block = i * strides[0] + j * strides[1]  # w may be a window of the blocks of a larger array
        starts: dict[str, np.ndarray] = {
            "w": block,
            "y": block,
            "strips": (j * b.rows + i) * b.segment * row,
            "w by segment": block + di * b.segment * itemsize,
            "y by segment": block + 0 * di,
            "x by segment": ((i + di) * b.columns + j) * b.depth * row,
        }
        return starts[which]
