"""IEEE's half precision with a scale: 11 bits of significand, 5 of exponent, and one power of two for all of a payload.

Halves reach 65,504, and below 2^-14 they lose bits one by one. So numbers are divided by the power of two that brings
the largest magnitude between 2^14 and 2^15: nothing overflows, and whatever is larger than 2^-28 of the largest number
is off by 2^-11 of itself at most; what is smaller, by 2^-39 of the largest. All of it is exact but for the rounding to
a half, to the nearest, ties to even. Infinity and NaN stay what they are, and do not bear on the scale.

Payload: the scale, float32; then n halves, 2 bytes each. A number is scale x half.

Source of the branch-free rounding: F. Giesen, "Float->half variants", 2012 (float_to_half_fast3_rtne).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dbelief.arrays.jit import kernel

u16, u32, i32, f32 = np.uint16, np.uint32, np.int32, np.float32

SCALE_BYTES = 4
_LEAST, _MOST = -126, 113
"""Exponents of a scale: it and its inverse are float32 without loss, and no half times it leaves float32."""
_OVER = 0x7F7FF000
"""Bits of the least float32 whose half, scaled back, would be 2^128."""


class Float16:
    """Halves below one scale. Keeps nothing: the same numbers give the same payload."""

    name: ClassVar[str] = "fp16"
    keeps: ClassVar[bool] = False

    def encode(self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()) -> np.ndarray:
        """See `Codec`."""
        largest = _largest(values.view(u32))
        if largest >= _OVER:  # float32's last 4,096 numbers: the nearest half that float32 can hold
            limit = u32(_OVER - 1).view(f32)
            values = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
        exponent = min(max((int(largest) >> 23) - 127 - 14, _LEAST), _MOST) if largest else 0
        payload = np.empty(SCALE_BYTES + 2 * values.size, np.uint8)
        payload[:SCALE_BYTES].view(f32)[0] = 2.0**exponent
        _encode(values, f32(2.0**-exponent), payload[SCALE_BYTES:].view(u16))
        return payload

    @staticmethod
    def decode(payload: memoryview, out: np.ndarray) -> None:
        """See `Codec`."""
        if payload.nbytes != SCALE_BYTES + 2 * out.size:
            raise ValueError(f"{payload.nbytes} bytes are not a scale and {out.size} numbers of fp16")
        scale = np.frombuffer(payload, f32, 1)[0]
        mantissa, exponent = np.frexp(scale)
        if mantissa != 0.5 or not _LEAST <= exponent - 1 <= _MOST:
            raise ValueError(f"a scale of {scale:g} is no power of two from 2^{_LEAST} to 2^{_MOST}")
        _decode(np.frombuffer(payload, u16, offset=SCALE_BYTES), scale, out)


@kernel("read uint32", "int32")
def _largest(values: np.ndarray) -> np.int32:
    """Bits of the largest finite magnitude: they rise with it."""
    largest = i32(0)
    for i in range(values.size):
        magnitude = i32(values[i] & u32(0x7FFFFFFF))
        magnitude = magnitude if magnitude < i32(0x7F800000) else i32(0)
        largest = magnitude if magnitude > largest else largest
    return largest


@kernel("read float32", "float32", "write uint16", "void")
def _encode(values: np.ndarray, inverse: np.float32, halves: np.ndarray) -> None:
    for i in range(values.size):
        whole = f32(values[i] * inverse).view(u32)
        magnitude = u32(whole & u32(0x7FFFFFFF))
        odd = u32(u32(magnitude >> u32(13)) & u32(1))
        normal = u32(u32(u32(magnitude + u32(0xC8000FFF)) + odd) >> u32(13))  # the exponent less 112, then rounded
        small = u32(f32(magnitude.view(f32) + f32(0.5)).view(u32) - u32(0x3F000000))  # the sum rounds at 2^-24
        half = small if magnitude < u32(0x38800000) else normal
        special = u32(0x7E00) if magnitude > u32(0x7F800000) else u32(0x7C00)
        half = special if magnitude >= u32(0x7F800000) else half
        halves[i] = u16(u32(half | u32(u32(whole >> u32(16)) & u32(0x8000))))


@kernel("read uint16", "float32", "write float32", "void")
def _decode(halves: np.ndarray, scale: np.float32, values: np.ndarray) -> None:
    for i in range(halves.size):
        half = u32(halves[i])
        shifted = u32(u32(half & u32(0x7FFF)) << u32(13))
        whole = f32(shifted.view(f32) * f32(2.0**112)).view(u32)
        whole = u32(whole | u32(0x7F800000)) if shifted >= u32(0x0F800000) else whole
        values[i] = f32(u32(whole | u32(u32(half & u32(0x8000)) << u32(16))).view(f32) * scale)
