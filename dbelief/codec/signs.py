"""One-bit's loops over blocks of numbers; importing this module imports numba.

A row is the eight numbers of a payload's byte: one pass adds the residual, writes the signs' byte and sums each side,
the second takes the means off. Sums are in float64, where up to 2,048 numbers of float32 lose nothing unless their
exponents are more than 18 apart; the mean of equal numbers is that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dbelief.arrays.jit import kernel
from dbelief.arrays.lanes import rows, wide

u8, u32, f32, f64 = np.uint8, np.uint32, np.float32, np.float64

_ROW = 8
_COUNT = ir.IntType(32)


def _split(builder: Any, values: Any, kept: Any, bits: Any) -> Sequence[Any]:
    """One row: the sum into `kept`, its byte, and terms of the sum from 0 up, the sum below and the count from 0 up."""
    total = builder.fadd(builder.load(values, align=1), builder.load(kept, align=1))
    builder.store(total, kept, align=1)
    zero = ir.Constant(total.type, [total.type.element(0)] * _ROW)
    high = builder.fcmp_ordered(">=", total, zero)
    builder.store(builder.bitcast(high, ir.IntType(_ROW)), bits, align=1)
    sides = builder.select(high, total, zero), builder.select(high, zero, total)
    return [*(wide(builder, side) for side in sides), builder.zext(high, ir.VectorType(_COUNT, _ROW))]


def _typed_split(typing: Any, values: Any, kept: Any, bits: Any) -> Any:
    double = ir.DoubleType()
    answer = types.Tuple((types.float64, types.float64, types.uint32))  # type: ignore[no-untyped-call]
    return answer(values, kept, bits), rows(_ROW, [double, double, _COUNT], _split)


_split_rows: Any = intrinsic(_typed_split)


@kernel("read float32", "write float32", "read int64", "write float32", "write uint8", "void")
def encode(values: np.ndarray, kept: np.ndarray, blocks: np.ndarray, means: np.ndarray, packed: np.ndarray) -> None:
    """Write means and bits of blocks of these lengths, and the residual over `kept`."""
    first = at = 0
    for block in range(blocks.size):
        stop = first + blocks[block]
        g, v = values[first:stop], kept[first:stop]
        bits = packed[at : at + (g.size + 7) // 8]
        high, low, above = _split_rows(g, v, bits)
        byte = u32(0)
        for i in range(g.size // _ROW * _ROW, g.size):
            v[i] = g[i] + v[i]
            up = v[i] >= f32(0)
            high += f64(v[i]) if up else 0.0
            low += 0.0 if up else f64(v[i])
            byte = u32(byte | u32(u32(1 if up else 0) << u32(i % _ROW)))
            above = u32(above + u32(1 if up else 0))
        if g.size % _ROW:
            bits[g.size // _ROW] = u8(byte)
        below = g.size - above
        high_mean = f32(high / above) if above else f32(0)
        low_mean = f32(low / below) if below else f32(0)
        means[2 * block], means[2 * block + 1] = low_mean, high_mean
        for i in range(v.size):
            v[i] -= high_mean if v[i] >= f32(0) else low_mean
        first, at = stop, at + bits.size


@kernel("read uint8", "read float32", "read int64", "write float32", "void")
def decode(packed: np.ndarray, means: np.ndarray, blocks: np.ndarray, values: np.ndarray) -> None:
    """Write the means that the bits of blocks of these lengths choose."""
    first = at = 0
    for block in range(blocks.size):
        out = values[first : first + blocks[block]]
        bits = packed[at : at + (out.size + 7) // 8]
        low, high = means[2 * block], means[2 * block + 1]
        whole = out.size // 8
        for j in range(whole):
            byte = u32(bits[j])
            for k in range(8):
                out[8 * j + k] = high if u32(byte & u32(1 << k)) else low
        for i in range(8 * whole, out.size):
            out[i] = high if u32(u32(bits[whole]) >> u32(i - 8 * whole)) & u32(1) else low
        first, at = first + out.size, at + bits.size
