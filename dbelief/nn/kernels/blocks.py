"""Block-local weights: blocks of neurons that share a receptive field (Coates et al. 2013, section 4.1), in tiles.

An image whose sides are multiples of the stride s is cut into tiles of s x s pixels (`tiles.py`), so that blocks lie
one tile apart, and block (i, j) sees the tiles [i, i + g) x [j, j + g). All arrays have the batch innermost:

    x [rows][columns][q][M]         what is seen: q numbers a tile
    w [nr][nc][F][g][g][q]          a neuron's weights are K = g g q numbers in one piece
    y [nr][nc][F][M]                F neurons a block; nr = rows - g + 1, nc = columns - g + 1

With the neurons of a block in the order (dy, dx, channel), y is x of the next layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Blocks:
    """The shape of one layer.

    Attributes
    ----------
    rows, columns
        Of tiles.
    window
        Tiles that a block sees in each direction: g.
    depth
        Numbers in a tile: q, which is s s c for an image of c channels.
    neurons
        In a block: F.
    """

    rows: int
    columns: int
    window: int
    depth: int
    neurons: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}, must be 1 or more")
        if self.window > min(self.rows, self.columns):
            raise ValueError(f"window is {self.window}, must fit into {self.rows} x {self.columns} tiles")

    @property
    def nr(self) -> int:
        """Rows of blocks."""
        return self.rows - self.window + 1

    @property
    def nc(self) -> int:
        """Columns of blocks."""
        return self.columns - self.window + 1

    @property
    def segment(self) -> int:
        """Numbers that a block sees in one row of tiles, which lie in one piece: g q."""
        return self.window * self.depth

    @property
    def fan_in(self) -> int:
        """Numbers that a neuron sees: K = g g q."""
        return self.window * self.segment

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of w."""
        return self.nr, self.nc, self.neurons, self.window, self.window, self.depth

    @property
    def norms_shape(self) -> tuple[int, ...]:
        """Shape of what is one number a neuron."""
        return self.nr, self.nc, self.neurons

    def x_shape(self, batch: int) -> tuple[int, ...]:
        """Shape of x."""
        return self.rows, self.columns, self.depth, batch

    def y_shape(self, batch: int) -> tuple[int, ...]:
        """Shape of y."""
        return self.nr, self.nc, self.neurons, batch

    def flops(self, batch: int) -> int:
        """Floating point operations of Wx, of W^T y and of y x^T, each: two for each weight and sample."""
        return 2 * math.prod(self.w_shape) * batch

    def check_weights(self, name: str, w: Any, dtype: np.dtype, whole: bool = True) -> None:
        """Refuse what has not the shape of w, another dtype, or gaps; unless `whole`, gaps between blocks are allowed.

        Raises
        ------
        ValueError
        """
        checked, shape = w, self.w_shape
        if w.shape == shape and not whole:
            checked, shape = w[:1, :1], (1, 1, *shape[2:])
        if row_length(name, checked, shape, dtype) != self.depth:
            raise ValueError(f"{name} must be C-contiguous" if whole else f"each block of {name} must be C-contiguous")


def row_length(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Distance between the starts of an array's rows, in elements: BLAS's leading dimension.

    The array is C-contiguous, or the same columns of each row of one that is: x may be the left half of
    [rows][columns][q][2 M].

    Raises
    ------
    ValueError
        Another shape or dtype, or rows that are not equally far apart.
    """
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, must be {dtype} {shape}")
    size, rows, length = array.dtype.itemsize, 1, shape[-1]
    even = shape[-1] == 1 or array.strides[-1] == size
    for count, stride in zip(shape[-2::-1], array.strides[-2::-1], strict=True):
        if count > 1:  # the stride of an axis of one element says nothing
            length = stride // size if rows == 1 else length
            even = even and stride == rows * length * size
        rows *= count
    if not even or length < shape[-1]:
        raise ValueError(f"the rows of {name} must be in one piece each and equally far apart")
    return length
