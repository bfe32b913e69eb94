"""Index of an arena: from a key to the number of its row, by open addressing with linear probing.

A slot is 32 bits: a tag, 8 bits of the key's hash, and the row's number plus one; 0 is an empty slot. A lookup compares
a key only where the tag is equal, so that a key that has no row costs one access to memory in most cases. At most three
of four slots are used.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel

u32, u64, i32, i64 = np.uint32, np.uint64, np.int32, np.int64

MOST_ROWS = (1 << 24) - 2
"""Rows of one arena."""
_FEWEST = 16
_ROWS = u32((1 << 24) - 1)


def slots_for(rows: int) -> int:
    """Slots of an index that has room for so many rows: a power of two."""
    return max(_FEWEST, 1 << (-(-4 * rows // 3) - 1).bit_length())


@kernel("read int64", "read uint64", "read int64", "read uint32", "write int32", "int64")
def find(keys: np.ndarray, hashed: np.ndarray, held: np.ndarray, slots: np.ndarray, rows: np.ndarray) -> int:
    """Write the row of each key, -1 where it has none; returns how many have none. `held`: keys of the rows."""
    mask, missing = u64(slots.size - 1), 0
    for i in range(keys.size):
        at, tag = u64(hashed[i] & mask), u32(u32(u64(hashed[i] >> u64(40)) & u64(255)) << u32(24))
        row = -1
        while slots[at]:
            if u32(slots[at] ^ tag) <= _ROWS and held[u64(u64(slots[at] & _ROWS) - u64(1))] == keys[i]:
                row = int(i64(slots[at] & _ROWS)) - 1
                break
            at = u64(u64(at + u64(1)) & mask)
        rows[i] = i32(row)
        missing += row < 0
    return missing


@kernel("read uint64", "read int32", "write uint32", "void")
def insert(hashed: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> None:
    """Enter rows whose keys have none in the index yet; it has room for them."""
    mask = u64(slots.size - 1)
    for i in range(rows.size):
        at, tag = u64(hashed[i] & mask), u32(u32(u64(hashed[i] >> u64(40)) & u64(255)) << u32(24))
        while slots[at]:
            at = u64(u64(at + u64(1)) & mask)
        slots[at] = u32(tag | u32(rows[i] + 1))
