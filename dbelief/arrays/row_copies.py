"""Copies of rows of a two-dimensional array, by their numbers, in compiled loops."""

from __future__ import annotations

import numpy as np

from .jit import kernel


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
            at = rows[i] * stride + first
            for j in range(count):
                values[i * count + j] = numbers[at + j]


@kernel("read float32", "read int64", "read int32", "write float32", "void")
def gather_parts(numbers: np.ndarray, edges: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Copy rows part by part, the first of all rows before the second; part j has columns edges[j] to edges[j + 1]."""
    stride, to = edges[edges.size - 1], 0
    for part in range(edges.size - 1):
        first, count = edges[part], edges[part + 1] - edges[part]
        for i in range(rows.size):
            at = rows[i] * stride + first
            for j in range(count):
                values[to + j] = numbers[at + j]
            to += count


@kernel("read float32", "read int64", "read int32", "write float32", "void")
def scatter_parts(values: np.ndarray, edges: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> None:
    """Write rows as `gather_parts` has copied them."""
    stride, of = edges[edges.size - 1], 0
    for part in range(edges.size - 1):
        first, count = edges[part], edges[part + 1] - edges[part]
        for i in range(rows.size):
            at = rows[i] * stride + first
            for j in range(count):
                numbers[at + j] = values[of + j]
            of += count
