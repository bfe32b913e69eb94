"""The block-local kernels in NumPy: each is matrix products of BLAS, with as little moved around them as there can be.

In x the g tiles that block (i, j) sees in one row are one matrix of g q rows, a *segment*; the g segments of a block
lie a row of tiles apart, so that its whole input is not a matrix that BLAS can take.

* Wx sums over all K numbers: it takes a copy in which the segments of a block follow each other, a *strip*
  [rows][g q][M] for one column of blocks: block i is rows i to i + g of it, and the column one batched product. All
  strips together are nc g / columns times as large as x; one at a time stays in the cache. Segment by segment without
  the copy, y would be read and written g times.
* y x^T sums over the batch alone, so that a segment of x is enough for a segment of w: one batched product over all
  blocks and segments, from x into w as they lie. A segment of w stays in the cache while BLAS clears it and adds to it;
  a block's whole w would not.
* W^T y adds what a block gives to the tiles that it sees. A block's product fits into the cache, is added, and
  overwritten by the next. Output by output, with a tile's weights gathered from the blocks around it, all of w would be
  copied: slower by a tenth and more.

Sums are in a fixed order, so that the same arrays give the same bits (with the same number of BLAS threads).
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dbelief.arrays.backend import aligned

from .blocks import Blocks, row_length


class HostKernels:
    """Wx, W^T y, y x^T and |W| of one layer for batches of one size, and the buffers for them.

    Parameters
    ----------
    batch
        M.
    dtype
        float32 or float64, of all arrays.
    """

    def __init__(self, blocks: Blocks, batch: int, dtype: np.dtype) -> None:
        self.blocks, self.batch, self.dtype = blocks, batch, dtype
        size = blocks.segment * batch
        self._strip = aligned(blocks.rows * size, dtype).reshape(blocks.rows, blocks.segment, batch)
        self._seen = as_strided(self._strip, (blocks.nr, blocks.fan_in, batch), self._strip.strides)
        self._given = aligned(blocks.fan_in * batch, dtype).reshape(blocks.fan_in, batch)

    def forward(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
        """Write y = W x: y[i, j] = sum over di, dj of w[i, j, :, di, dj] x[i + di, j + dj].

        x and y may be the same columns of the rows of longer arrays, w some rows and columns of the blocks of one.
        """
        w, blocks = self._matrices("w", w, whole=False), self.blocks
        segments = self._segments(x, self.batch)
        row_length("y", y, blocks.y_shape(self.batch), self.dtype)
        for j in range(blocks.nc):
            np.copyto(self._strip, segments[:, j])
            np.matmul(w[:, j], self._seen, out=y[:, j])

    def backward_data(self, w: np.ndarray, y: np.ndarray, x: np.ndarray) -> None:
        """Write x = W^T y: x[a, b] = sum over di, dj of w[a - di, b - dj, :, di, dj]^T y[a - di, b - dj].

        x and y may be the same columns of the rows of longer arrays.
        """
        w, blocks = self._matrices("w", w).swapaxes(-1, -2), self.blocks
        segments = self._segments(x, self.batch)
        row_length("y", y, blocks.y_shape(self.batch), self.dtype)
        given = self._given.reshape(blocks.window, blocks.segment, self.batch)
        x[...] = 0
        for i in range(blocks.nr):
            for j in range(blocks.nc):
                np.matmul(w[i, j], y[i, j], out=self._given)
                seen = segments[i : i + blocks.window, j]
                np.add(seen, given, out=seen)

    def backward_weight(self, y: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
        """Write w = y x^T where w has weights: w[i, j, :, di, dj] = y[i, j] x[i + di, j + dj]^T.

        The batch may have any size here. Two such gradients a b^T + c d^T are one of twice the batch, with
        a and c side by side in y, b and d side by side in x.
        """
        blocks, batch = self.blocks, x.shape[-1]
        segments = self._segments(x, batch)
        row_length("y", y, blocks.y_shape(batch), self.dtype)
        g = blocks.window
        by_segment = self._matrices("w", w).reshape(blocks.nr, blocks.nc, blocks.neurons, g, blocks.segment)
        row, *others = segments.strides
        seen = as_strided(segments, (blocks.nr, g, *segments.shape[1:]), (row, row, *others)).swapaxes(1, 2)
        np.matmul(y[:, :, None], seen.swapaxes(-1, -2), out=by_segment.swapaxes(2, 3))

    def row_norms(self, w: np.ndarray, norms: np.ndarray) -> None:
        """Write the norm of each neuron's weights, [nr][nc][F]."""
        w = self._matrices("w", w)
        row_length("norms", norms, self.blocks.norms_shape, self.dtype)
        np.vecdot(w, w, out=norms)
        np.sqrt(norms, out=norms)

    def _matrices(self, name: str, w: np.ndarray, whole: bool = True) -> np.ndarray:
        """[nr][nc][F][K]."""
        self.blocks.check_weights(name, w, self.dtype, whole)
        return w.reshape(*self.blocks.norms_shape, self.blocks.fan_in)

    def _segments(self, x: np.ndarray, batch: int) -> np.ndarray:
        """[rows][nc][g q][M]: the tiles j to j + g of a row of x as one matrix; they overlap."""
        blocks = self.blocks
        length = row_length("x", x, blocks.x_shape(batch), self.dtype) * x.itemsize
        strides = blocks.columns * blocks.depth * length, blocks.depth * length, length, x.itemsize
        return as_strided(x, (blocks.rows, blocks.nc, blocks.segment, batch), strides)
