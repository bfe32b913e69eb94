"""The largest magnitudes of blocks of numbers: exactly so many, without sorting; importing this module imports numba.

Magnitudes are compared as their 31 bits, which rise with them. A pass over a block counts those from a limit up, at
first from a little below the limit of the block before. The limit moves in steps that double until the k-th largest
magnitude is between two limits, and then to their middle, until k to 2 k numbers are above it. These are listed, and
only the list is bisected further. Where neighbouring blocks are alike, that is a count or two and the listing; some 40
counts at most. What is chosen does not depend on the first limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dbelief.arrays.jit import kernel

i32, f32, u64 = np.int32, np.float32, np.uint64

_ROW = 64
"""Numbers that are compared at a time, for a bit each."""
_INFINITE = 0x7F800000
_LOWER = 1 << 19
"""A 16th of a power of two, in the bits of a float32."""


def _compare(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    whole = ir.IntType(32)
    row = ir.VectorType(whole, _ROW)
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    start = builder.bitcast(builder.gep(array.data, [arguments[1]]), row.as_pointer())
    sizes = builder.and_(builder.load(start, align=4), ir.Constant(row, [whole(0x7FFFFFFF)] * _ROW))
    one = builder.insert_element(ir.Constant(row, ir.Undefined), arguments[2], whole(0))
    limits = builder.shuffle_vector(one, one, ir.Constant(row, [whole(0)] * _ROW))
    return builder.bitcast(builder.icmp_signed(">=", sizes, limits), ir.IntType(_ROW))


def _typed_compare(typing: Any, numbers: Any, first: Any, limit: Any) -> Any:
    """uint64 of float32 from `first` on: bit i is 1 where the magnitude of number i, in bits, is at least the limit."""
    return types.uint64(numbers, types.int64, types.int32), _compare


def _typed_lowest(typing: Any, mask: Any) -> Any:
    """int64: the index of the lowest bit that is 1."""

    def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), made


def _typed_ones(typing: Any, mask: Any) -> Any:
    """int64: how many bits are 1."""

    def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), made


_from_up: Any = intrinsic(_typed_compare)
_lowest: Any = intrinsic(_typed_lowest)
_ones: Any = intrinsic(_typed_ones)


@kernel("read float32", "write float32", "read int64", "write int64", "write int32", "boolean")
def choose(values: np.ndarray, kept: np.ndarray, lengths: np.ndarray, counts: np.ndarray, chosen: np.ndarray) -> bool:
    """Add the values to what was kept, and choose the largest sums of each block.

    Parameters
    ----------
    values, kept
        (n,); the sums are written over `kept`.
    lengths
        Numbers of each block.
    counts
        How many of each block are to be chosen, at least 1; overwritten by how many are: fewer where others are 0.
    chosen
        One longer than the sum of `counts`. Indices within their blocks, rising, block behind block; of equal
        magnitudes the lowest indices.

    Returns
    -------
    bool
        False where a sum is not finite.
    """
    longest = lengths.max()
    places, sizes = np.empty(longest, i32), np.empty(longest, i32)
    masks, tried = np.zeros(longest // _ROW + 1, u64), np.zeros(longest // _ROW + 1, u64)
    guess, first, at = 1, 0, 0
    for block in range(lengths.size):
        stop, most = first + lengths[block], counts[block]
        g, v = values[first:stop], kept[first:stop]
        largest = i32(0)
        for i in range(g.size):
            total = v[i] + g[i]
            v[i] = total
            size = i32(f32(total).view(i32) & i32(0x7FFFFFFF))
            largest = size if size > largest else largest
        if largest >= i32(_INFINITE):
            return False
        whole = g.size // _ROW
        least, beyond, step, found = 0, int(largest) + 1, _LOWER, g.size
        limit = min(guess, int(largest))
        tried[:] = u64(0)  # what is listed where all are 0
        while beyond - least > 1 and (found > 2 * most or not least):
            count, bound = 0, i32(limit)
            for row in range(whole):
                tried[row] = _from_up(v, row * _ROW, bound)
                count += _ones(tried[row])
            tried[whole] = u64(0)
            for i in range(whole * _ROW, g.size):
                up = i32(f32(v[i]).view(i32) & i32(0x7FFFFFFF)) >= bound
                tried[whole] |= u64(u64(1 if up else 0) << u64(i & (_ROW - 1)))
            count += _ones(tried[whole])
            if count >= most:
                least, found, tried, masks = limit, count, masks, tried
            else:
                beyond = limit
            limit = max(beyond - step, 1) if not least else min(least + step, int(largest))
            if least and beyond <= largest:
                limit = (least + beyond) // 2
            step *= 2
        masks, tried, least = masks if least else tried, tried if least else masks, max(least, 1)
        found = 0
        for row in range(whole + 1):
            mask = u64(masks[row])
            while mask:
                place = row * _ROW + _lowest(mask)
                places[found], sizes[found] = i32(place), i32(f32(v[place]).view(i32) & i32(0x7FFFFFFF))
                found, mask = found + 1, u64(mask & u64(mask - u64(1)))
        listed = found
        while found > most and beyond - least > 1:
            limit = (least + beyond) // 2
            count, bound = 0, i32(limit)
            for i in range(listed):
                count += 1 if sizes[i] >= bound else 0
            if count >= most:
                least, found = limit, count
            else:
                beyond = limit
        above = 0
        for i in range(listed):
            above += 1 if sizes[i] > least else 0
        equal, start = min(found, most) - above, at
        for i in range(listed):
            same = int(sizes[i] == least)
            chosen[at] = places[i]  # no branch: which are taken cannot be foreseen
            at += int(sizes[i] > least) | (same & int(equal > 0))
            equal -= same
        counts[block] = at - start
        guess, first = max(least - _LOWER, 1), stop
    return True
