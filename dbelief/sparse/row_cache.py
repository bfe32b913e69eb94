"""Rows of one table as a worker has pulled them, by key: at most so many, each for so many steps.

A row is in a slot, in the order in which keys came; `dbelief.arrays.row_index` finds it. Rows that are dropped, as the
worker has pushed to them, are not read again; their slots stay until they are filled anew or needed. Where there is no
room, the slots go that were read the longest ago, an eighth of all at least, as a removal is a pass over all of them:
dropped ones first, and of equal ones those of the earliest keys.

Cost: a row of width w has 40 + 4 w bytes and 5.3 to 10.7 of the index; a read is a lookup and a copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dbelief.arrays.row_index import find, insert, slots_for

from .row_hash import buckets, hashes
from .table import SparseTable

_SPARE = 8
"""Of a full cache an eighth of the slots is emptied at a time."""
_DROPPED = -1
_NEWEST = np.iinfo(np.int64).max


class CachedRows(NamedTuple):
    """What a cache has of (n,) keys.

    Attributes
    ----------
    rows
        (n, width) float32; without a value where a key is missing.
    missing
        (n,) bool.
    versions
        (buckets,) int64: the oldest version of each bucket that a row is from; -1: there is none.
    """

    rows: np.ndarray
    missing: np.ndarray
    versions: np.ndarray


class RowCache:
    """Rows of one table; for one thread.

    Parameters
    ----------
    most
        Rows, at most.
    age
        Steps that a row may be read after that in which it was pulled.

    Attributes
    ----------
    count
        Slots in use, those of dropped rows too.
    hits, reads
        Keys that were found, and all that were looked for, so far.
    """

    def __init__(self, table: SparseTable, most: int, age: int) -> None:
        self._table, self._most, self.age = table, most, age
        self.count = self.hits = self.reads = 0
        self._calls = 0
        self._keys = np.empty(most, np.int64)
        self._rows = np.empty((most, table.width), np.float32)
        self._versions = np.empty(most, np.int64)  # of the key's bucket, at the pull
        self._due = np.empty(most, np.int64)  # last step in which it may be read, or `_DROPPED`
        self._clocks = np.empty(most, np.int64)  # last clock that may be computed from it
        self._used = np.empty(most, np.int64)  # number of the call that read or filled it last
        self._index = np.zeros(slots_for(most), np.uint32)

    def read(self, keys: np.ndarray, step: int, clock: int) -> CachedRows:
        """Rows of (n,) int64 keys that may be read in this step, and for this clock."""
        hashed = hashes(keys, self._table.salt)
        slots = self._find(keys, hashed)
        known = slots >= 0
        known[known] = (self._due[slots[known]] >= step) & (self._clocks[slots[known]] >= clock)
        slots = slots[known]
        self._calls += 1
        self._used[slots] = self._calls
        self.reads, self.hits = self.reads + keys.size, self.hits + slots.size
        rows = np.empty((keys.size, self._table.width), np.float32)
        rows[known] = self._rows[slots]
        oldest = np.full(self._table.count, _NEWEST)
        np.minimum.at(oldest, buckets(hashed[known], self._table.count), self._versions[slots])
        return CachedRows(rows, ~known, np.where(oldest == _NEWEST, -1, oldest))

    def keep(self, keys: np.ndarray, rows: np.ndarray, versions: np.ndarray, step: int, clock: int) -> None:
        """Keep rows that were pulled; of more than there is room for the last.

        Parameters
        ----------
        keys, rows
            (n,) int64, each once, and (n, width) float32.
        versions
            (buckets,) int64 of the pull.
        step, clock
            In which they were pulled, and the last clock that may be computed from them.
        """
        keys, rows = keys[-self._most :], rows[-self._most :]
        hashed = hashes(keys, self._table.salt)
        self._calls += 1
        slots = self._find(keys, hashed)
        held, new = slots[slots >= 0], int(np.count_nonzero(slots < 0))
        self._used[held], self._due[held] = self._calls, step
        if self.count + new > self._most:
            self._drop_all_but(max(held.size, self._most - max(new, self._most // _SPARE)))
            slots = self._find(keys, hashed)
        without = slots < 0
        made = np.arange(self.count, self.count + new, dtype=np.int32)
        self._keys[made], slots[without] = keys[without], made
        insert(hashed[without], made, self._index)
        self.count += new
        self._rows[slots], self._versions[slots] = rows, versions[buckets(hashed, self._table.count)]
        self._due[slots], self._clocks[slots], self._used[slots] = step + self.age, clock, self._calls

    def drop(self, keys: np.ndarray) -> None:
        """Drop the rows of (n,) int64 keys: they have changed."""
        slots = self._find(keys, hashes(keys, self._table.salt))
        self._due[slots[slots >= 0]] = _DROPPED

    def _find(self, keys: np.ndarray, hashed: np.ndarray) -> np.ndarray:
        slots = np.empty(keys.size, np.int32)
        find(keys, hashed, self._keys, self._index, slots)
        return slots

    def _drop_all_but(self, stay: int) -> None:
        """Empty all slots but so many, which are numbered anew in their order."""
        used = np.where(self._due[: self.count] == _DROPPED, _DROPPED, self._used[: self.count])
        kept = np.sort(np.argsort(used, kind="stable")[self.count - stay :])
        for values in (self._keys, self._rows, self._versions, self._due, self._clocks, self._used):
            values[:stay] = values[kept]
        self.count = stay
        self._index[:] = 0
        insert(hashes(self._keys[:stay], self._table.salt), np.arange(stay, dtype=np.int32), self._index)
