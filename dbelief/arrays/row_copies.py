"""Copies of rows of a two-dimensional array, by their numbers, in compiled loops.

Places are unsigned: numba makes of a signed one, which may be negative and count from the end, no vector code.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel

u64, i64 = np.uint64, np.int64


@kernel("read int32", "uint32", "write uint32", "void")
def stamp_rows(rows: np.ndarray, stamp: int, stamps: np.ndarray) -> None:
    """Write the stamp of rows; of row -1 nothing."""
    for i in range(rows.size):
        if rows[i] >= 0:
            stamps[rows[i]] = stamp


@kernel("read float32", "int64", "int64", "int64", "read int32", "write float32", "void")
def gather(numbers: np.ndarray, stride: int, first: int, count: int, rows: np.ndarray, values: np.ndarray) -> None:
    """Copy some columns of rows; of row -1 nothing."""
    for i in range(rows.size):
        if rows[i] >= 0:
            at, to = u64(i64(rows[i]) * stride + first), u64(i * count)
            for j in range(count):
                values[u64(to + u64(j))] = numbers[u64(at + u64(j))]


@kernel("read float32", "read int64", "read int32", "write float32", "void")
def gather_parts(numbers: np.ndarray, edges: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Copy rows part by part, the first of all rows before the second; part j has columns edges[j] to edges[j + 1]."""
    stride = edges[edges.size - 1]
    for part in range(edges.size - 1):
        first, count = edges[part], edges[part + 1] - edges[part]
        for i in range(rows.size):
            at, to = u64(i64(rows[i]) * stride + first), u64(first * rows.size + i * count)
            for j in range(count):
                values[u64(to + u64(j))] = numbers[u64(at + u64(j))]


@kernel("read float32", "read int64", "read int32", "write float32", "void")
def scatter_parts(values: np.ndarray, edges: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> None:
    """Write rows as `gather_parts` has copied them."""
    stride = edges[edges.size - 1]
    for part in range(edges.size - 1):
        first, count = edges[part], edges[part + 1] - edges[part]
        for i in range(rows.size):
            at, of = u64(i64(rows[i]) * stride + first), u64(first * rows.size + i * count)
            for j in range(count):
                numbers[u64(at + u64(j))] = values[u64(of + u64(j))]
