"""The largest magnitudes of blocks of numbers: exactly so many, without sorting.

Magnitudes are compared as their 31 bits, which rise with them. A pass over a block counts those from a limit up; the
limit is that of the block before, a little lower, and is halved towards where the count is between k and 2 k. These
candidates are listed, and the limit is halved on within the list alone. Where neighbouring blocks are alike, that is one
count and one listing; 31 counts at most. The result does not depend on the first limit.
"""

from __future__ import annotations

import numpy as np

from dbelief.arrays.jit import kernel

u32, i32, f32, i64 = np.uint32, np.int32, np.float32, np.int64

BLOCK = 4096
"""Numbers of the longest block."""
_INFINITE = 0x7F800000
_LOWER = 1 << 20
"""An eighth of a power of two, in the bits of a float32."""


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
        Their indices within their blocks, rising, block behind block; of equal magnitudes the lowest indices.

    Returns
    -------
    bool
        False where a sum is not finite.
    """
    places, sizes = np.empty(BLOCK + 1, i32), np.empty(BLOCK + 1, i32)
    guess = i32(1)
    first = at = 0
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
        least, beyond, step, found = i64(0), i64(largest) + 1, i64(_LOWER), i64(g.size)
        limit = min(i64(guess), i64(largest))
        while found > 2 * most and beyond - least > 1:
            count, bound = i32(0), i32(limit)
            for i in range(g.size):
                size = i32(f32(v[i]).view(i32) & i32(0x7FFFFFFF))
                count = i32(count + i32(1 if size >= bound else 0))
            if count >= most:
                least, found = limit, i64(count)
            else:
                beyond = limit
            limit, step = (least + beyond) // 2 if least else max(beyond - step, 1), 2 * step
        least = max(least, 1)
        found, bound = i64(0), i32(least)
        for i in range(g.size):
            size = i32(f32(v[i]).view(i32) & i32(0x7FFFFFFF))
            places[found], sizes[found] = i32(i), size
            found += 1 if size >= bound else 0
        listed, count = found, found
        while found > most and beyond - least > 1:
            limit = (least + beyond) // 2
            count, bound = i32(0), i32(limit)
            for i in range(listed):
                count = i32(count + i32(1 if sizes[i] >= bound else 0))
            if count >= most:
                least, found = limit, i64(count)
            else:
                beyond = limit
        above = i64(0)
        for i in range(listed):
            above += 1 if sizes[i] > least else 0
        equal, start = min(found, most) - above, at
        for i in range(listed):
            if sizes[i] > least or (sizes[i] == least and equal > 0):
                chosen[at] = places[i]
                at += 1
                equal -= 1 if sizes[i] == least else 0
        counts[block] = at - start
        guess, first = i32(max(least - _LOWER, 1)), stop
    return True
