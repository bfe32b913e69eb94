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


@kernel("read float32", "int64", "int64", "int64", "read int32", "write float32", "void")
def scatter(values: np.ndarray, stride: int, first: int, count: int, rows: np.ndarray, numbers: np.ndarray) -> None:
    """Write some columns of rows."""
    for i in range(rows.size):
        at = rows[i] * stride + first
        for j in range(count):
            numbers[at + j] = values[i * count + j]
