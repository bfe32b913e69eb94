"""Whole numbers of four and of eight bytes as float32, in parts of 16 bits.

float32 has the whole numbers up to 2^24 only. A tensor of such numbers has one more axis on the shards: its parts,
the lowest first, of which the last one has the sign. The number is the sum of part k times 2^(16 k). That is linear, so
that differences can be added and averaged part by part. A part that grows beyond 2^22 is carried to the next one, one
unit with each push: replicas that push at once all carry, and more at a time would be too much. A push adds less than a
unit, so that parts stay below 2^24 with up to 190 replicas.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_BITS = 16
_BEYOND_FLOAT32 = ("int32", "uint32", "int64", "uint64")
_IN_PARTS = "/16"
_UNIT = np.float32(1 << _BITS)
_FULL = np.float32(1 << 22)
_SHIFTS = np.arange(0, 64, _BITS)
_POWERS = 2.0**_SHIFTS


def type_in_parts(dtype: str) -> str:
    """Type of a tensor on the shards, as `Box.dtype` has it: `dtype` itself where float32 has all its numbers."""
    return dtype + _IN_PARTS if dtype in _BEYOND_FLOAT32 else dtype


def whole_type(dtype: str) -> np.dtype[Any] | None:
    """Type of the numbers behind a type in parts; None of any other."""
    return np.dtype(dtype.removesuffix(_IN_PARTS)) if dtype.endswith(_IN_PARTS) else None


def split(values: np.ndarray) -> np.ndarray:
    """(..., k) float32 parts of (...) whole numbers."""
    count = values.dtype.itemsize * 8 // _BITS
    parts = values[..., np.newaxis] >> _SHIFTS[:count].astype(values.dtype)
    parts[..., :-1] &= (1 << _BITS) - 1
    numbers: np.ndarray = parts.astype(np.float32)
    return numbers


def join(parts: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """(...) whole numbers of (..., k) parts, to the nearest where an average left fractions."""
    count = parts.shape[-1]
    below = np.floor(parts)
    numbers = (below.astype(np.int64) << _SHIFTS[:count]).sum(axis=-1, keepdims=True)[..., 0]
    fractions = parts - below
    if fractions.any():
        numbers = numbers + np.rint(fractions.astype(np.float64) @ _POWERS[:count]).astype(np.int64)
    joined: np.ndarray = np.asarray(numbers).astype(dtype)
    return joined


def change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """What to add to (..., k) parts, so that they become (...) whole numbers."""
    signed = np.dtype(f"i{after.dtype.itemsize}")
    step = (after - join(before, after.dtype)).astype(signed)
    parts: np.ndarray = split(np.abs(step)) * np.sign(step)[..., np.newaxis].astype(np.float32)
    carried = np.sign(before[..., :-1]) * (np.abs(before[..., :-1]) >= _FULL)
    if carried.any():
        parts[..., :-1] -= carried * _UNIT
        parts[..., 1:] += carried
    return parts
