"""The distinct keys of a mini-batch, as a pull and a push of their rows have them: by bucket, and in each by key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.arrays.row_index import slots_for

from .row_hash import hashes
from .table import SparseTable

u32, u64, i64 = np.uint32, np.uint64, np.int64


class OrderedKeys(NamedTuple):
    """Keys, each once.

    Attributes
    ----------
    keys
        (n,) int64, in the order of `SparseTable.split`: what is read and pushed by them is sorted no more.
    places
        (m,) int64: position among them of each key that was given.
    """

    keys: np.ndarray
    places: np.ndarray


def ordered_keys(given: np.ndarray, table: SparseTable) -> OrderedKeys:
    """Distinct ones of (m,) int64 keys, with repeats. Cost: a lookup a key, and a sort of the distinct ones."""
    found, places = np.empty(given.size, i64), np.empty(given.size, i64)
    slots = np.zeros(slots_for(given.size), u32)
    count = _number(given, hashes(given, table.salt), slots, found, places)
    order, _ = table.runs(found[:count])
    new = np.empty(count, i64)
    new[order] = np.arange(count)
    return OrderedKeys(found[:count][order], new[places])


@kernel("read int64", "read uint64", "write uint32", "write int64", "write int64", "int64")
def _number(given: np.ndarray, hashed: np.ndarray, slots: np.ndarray, found: np.ndarray, places: np.ndarray) -> int:
    """Number distinct keys in the order in which they come first; returns how many there are. `slots`: all 0."""
    mask, count = u64(slots.size - 1), 0
    for i in range(given.size):
        at = u64(hashed[i] & mask)
        while slots[at] and found[i64(slots[at]) - 1] != given[i]:
            at = u64(u64(at + u64(1)) & mask)
        if not slots[at]:
            found[count] = given[i]
            count += 1
            slots[at] = u32(count)
        places[i] = i64(slots[at]) - 1
    return count
