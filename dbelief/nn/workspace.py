"""Buffers that a network keeps from step to step, so that a step in the steady state allocates no array."""

import math
from functools import lru_cache

import numpy as np

from dbelief.arrays.backend import Backend, aligned

from .bag_rows import BatchRows
from .kernels import Blocks, Kernels, make_kernels
from .model import Array


class Workspace:
    """Named buffers whose first axis is the batch.

    A buffer is as long as the largest batch so far, and a shorter batch gets its first rows: so memory is
    bounded by the largest batch, whatever lengths come.

    Attributes
    ----------
    xp : module
        `numpy` or `cupy`.
    key : uint32 of shape (1,), or None
        What a layer with random numbers draws them by in this step; None: it shall not (evaluation).
    part : (shape of a sample, index into it), or None
        What of the layer's outputs is computed here, where that is not all.
    tables : BatchRows, or None
        Rows of the batch, for a layer that reads tables.
    kernels(blocks, batch, dtype)
        The kernels of a block-local layer; the newest few are kept, with the buffers that they have.
    """

    def __init__(self, backend: Backend) -> None:
        self.xp = backend.xp
        self.key: Array | None = None
        self.part: tuple[tuple[int, ...], tuple[slice, ...]] | None = None
        self.tables: BatchRows | None = None
        self._backend = backend
        self._buffers: dict[str, Array] = {}
        self._rows: Array = self.xp.arange(0)

        @lru_cache(maxsize=18)  # a lease's last batch is shorter, evaluation has its own; up to six windows of each
        def kernels(blocks: Blocks, batch: int, dtype: np.dtype) -> Kernels:
            return make_kernels(blocks, batch, backend, dtype)

        self.kernels = kernels

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Give the buffer `name`, C-contiguous, with what it held before still in it.

        `shape[0]` is the batch length and may differ from call to call; a buffer is made anew when more numbers are
        wanted than ever before, or others.
        """
        size, buffer = math.prod(shape), self._buffers.get(name)
        if buffer is None or buffer.size < size or buffer.dtype != dtype:
            buffer = self._buffers[name] = self._allocate(size, dtype)
        return buffer[:size].reshape(shape)

    def rows(self, m: int) -> Array:
        """Give 0, 1, ..., m - 1 as int64."""
        if len(self._rows) < m:
            self._rows = self.xp.arange(m)
        return self._rows[:m]

    def places(self, shape: tuple[int, ...]) -> Array:
        """Give each of (m, *outputs) numbers its place among all outputs of the layer for m samples, as int64."""
        if self.part is None:
            return self.rows(math.prod(shape)).reshape(shape)
        sample, index = self.part
        return self.rows(shape[0] * math.prod(sample)).reshape(shape[0], *sample)[(slice(None), *index)]

    def _allocate(self, size: int, dtype: np.dtype) -> Array:
        return aligned(size, dtype) if self._backend.name == "numpy" else self.xp.empty(size, dtype)
