"""Whole numbers of 8 or 4 bits and a scale for each block, with error feedback.

Blocks with a scale of their own: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", section 2.1.
With v = g + e, numbers and what earlier payloads left out, of each block:

    s = max |v| / L ;  q = v / s, rounded to the nearest, ties to even ;  sent: Q(v) = q s ;  e <- v - Q(v)

with L = 127 or 7, so that |q| <= L and |e| <= s / 2, to rounding; and all that was sent and e together are the sum of
all g, to rounding. Where s would be smaller than float32's normal numbers it is 0, and the whole block is kept.

Payload, little-endian: pieces as `blocks` has them; then for each block float32 s; then per block its q, in two's
complement, number i in bits 4 (i % 2) of byte i // 2 where q has four bits. A block has 256 numbers.

Cost: a byte or half a one for each number, and 4 bytes a block; two passes over a block, which the first cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.errors import NonFinite

from .blocks import CodedBlocks

u8, u32, i32, f32 = np.uint8, np.uint32, np.int32, np.float32

BLOCK = 256
"""Numbers that share a scale."""
_SMALLEST, _LARGEST = f32(2.0**-126), f32(2.0**120)
"""Of scales: no product with a whole number overflows, and of larger numbers the rest is kept."""
_MAGIC = f32(3 * 2.0**22)
"""Added to a number below 2^22 it leaves the nearest whole number, ties to even, and its bits the lowest."""


class Int8:
    """Whole numbers of 8 bits."""

    name: ClassVar[str] = "int8"
    keeps: ClassVar[bool] = True
    bits: ClassVar[int] = 8

    def encode(self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()) -> np.ndarray:
        """See `Codec`."""
        assert residual is not None, "what rounding takes off goes to the residual"
        if residual.size != values.size:
            raise ValueError(f"{residual.size} numbers were kept for {values.size}")
        blocks = CodedBlocks.between(cuts, values.size, BLOCK, 1, self.bits)
        payload = blocks.payload()
        scales, bits = blocks.floats(payload), blocks.bits(payload)
        if not _encode(values, residual, blocks.lengths, scales, bits, self.bits == 4):
            raise NonFinite("what is to be sent and what was kept of it have no finite sum")
        return payload

    @classmethod
    def decode(cls, payload: memoryview, out: np.ndarray) -> None:
        """See `Codec`."""
        blocks = CodedBlocks.of(payload, out.size, BLOCK, 1, cls.bits)
        scales = blocks.floats(payload)
        if not ((scales >= 0) & (scales <= _LARGEST)).all():
            raise ValueError("scales of whole numbers that are negative, or larger than any sender's")
        _decode(blocks.bits(payload), scales, blocks.lengths, out, cls.bits == 4)


class Int4(Int8):
    """Whole numbers of 4 bits, two in a byte."""

    name: ClassVar[str] = "int4"
    bits: ClassVar[int] = 4


@kernel("read float32", "write float32", "read int64", "write float32", "write uint8", "boolean", "boolean")
def _encode(
    values: np.ndarray, kept: np.ndarray, lengths: np.ndarray, scales: np.ndarray, packed: np.ndarray, halves: bool
) -> bool:
    """Write scales and whole numbers, and the residual over `kept`; False where a sum is not finite."""
    most = f32(7) if halves else f32(127)
    codes = np.empty(BLOCK + 1, u32)
    first = at = 0
    for block in range(lengths.size):
        stop = first + lengths[block]
        g, v = values[first:stop], kept[first:stop]
        bits = packed[at : at + ((g.size + 1) // 2 if halves else g.size)]
        largest = i32(0)  # as bits, which rise with magnitude, up to infinity and NaN
        for i in range(g.size):
            total = v[i] + g[i]
            v[i] = total
            magnitude = i32(f32(total).view(i32) & i32(0x7FFFFFFF))
            largest = magnitude if magnitude > largest else largest
        if largest >= i32(0x7F800000):
            return False
        scale = f32(i32(largest).view(f32) / most)
        scale = f32(0) if scale < _SMALLEST else min(scale, _LARGEST)
        scales[block] = scale
        divisor = scale if scale > f32(0) else f32(np.inf)
        for i in range(g.size):
            x = min(max(f32(v[i] / divisor), -most), most)
            codes[i] = f32(x + _MAGIC).view(u32)
            v[i] -= f32(f32(x + _MAGIC) - _MAGIC) * scale
        if halves:
            codes[g.size] = u32(0)
            for j in range(bits.size):
                bits[j] = u8(u32(u32(codes[2 * j] & u32(15)) | u32(u32(codes[2 * j + 1] & u32(15)) << u32(4))))
        else:
            for j in range(bits.size):
                bits[j] = u8(u32(codes[j] & u32(255)))
        first, at = stop, at + bits.size
    return True


@kernel("read uint8", "read float32", "read int64", "write float32", "boolean", "void")
def _decode(packed: np.ndarray, scales: np.ndarray, lengths: np.ndarray, values: np.ndarray, halves: bool) -> None:
    """Write each block's whole numbers times its scale."""
    first = at = 0
    for block in range(lengths.size):
        out = values[first : first + lengths[block]]
        bits = packed[at : at + ((out.size + 1) // 2 if halves else out.size)]
        scale = scales[block]
        if halves:
            for i in range(out.size):
                code = i32(i32(i32(bits[i // 2]) >> i32(4 * (i % 2))) & i32(15))
                out[i] = f32(i32(i32(code ^ i32(8)) - i32(8))) * scale
        else:
            for i in range(out.size):
                out[i] = f32(i32(i32(i32(bits[i]) ^ i32(128)) - i32(128))) * scale
        first, at = first + out.size, at + bits.size
