"""bfloat16: float32's upper half, rounded to the nearest, ties to even; 8 bits of significand, float32's range.

A number is off by 2^-8 of itself at most. Infinity stays, a NaN stays one (made quiet), and what is nearer to 2^128
than to bfloat16's largest number becomes infinite, as IEEE's rounding has it.

Payload: n times 2 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dbelief.arrays.jit import kernel

u16, u32 = np.uint16, np.uint32


class BFloat16:
    """float32's upper half. Keeps nothing: the same numbers give the same payload."""

    name: ClassVar[str] = "bf16"
    keeps: ClassVar[bool] = False

    def encode(self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()) -> np.ndarray:
        """See `Codec`."""
        halves = np.empty(values.size, u16)
        _encode(values.view(u32), halves)
        return halves.view(np.uint8)

    @staticmethod
    def decode(payload: memoryview, out: np.ndarray) -> None:
        """See `Codec`."""
        if payload.nbytes != 2 * out.size:
            raise ValueError(f"{payload.nbytes} bytes are not {out.size} numbers of bf16")
        _decode(np.frombuffer(payload, u16), out.view(u32))


@kernel("read uint32", "write uint16", "void")
def _encode(values: np.ndarray, halves: np.ndarray) -> None:
    for i in range(values.size):
        whole = values[i]
        odd = u32(u32(whole >> u32(16)) & u32(1))
        rounded = u32(u32(u32(whole + u32(0x7FFF)) + odd) >> u32(16))
        quiet = u32(u32(whole >> u32(16)) | u32(0x40))  # a NaN's bits may run over where they are rounded
        halves[i] = u16(quiet if u32(whole & u32(0x7FFFFFFF)) > u32(0x7F800000) else rounded)


@kernel("read uint16", "write uint32", "void")
def _decode(halves: np.ndarray, values: np.ndarray) -> None:
    for i in range(halves.size):
        values[i] = u32(u32(halves[i]) << u32(16))
