"""Rows of one bucket of a table: keys, row numbers and their use, dense and in the order of their first push.

Row i is keys[i], stamps[i] and numbers[i]: the row itself, then the rule's state. A key without a row reads as its
initial row, which is computed from (seed, table, key) and takes no memory: only a push makes a row. Which push that is,
and how many rows there may be, a table's limits say (`dbelief.sparse.row_limits`).

Cost: a row of width w with s numbers of state takes 12 + 4 (w + s) bytes and 5.3 to 10.7 bytes of the index
(`RowForm.nbytes`). The capacity grows by a quarter at a time, and what is not used yet of it is memory that was never
touched.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dbelief.arrays.row_copies import gather, gather_parts, scatter_parts, stamp_rows
from dbelief.arrays.row_index import MOST_ROWS, find, insert, slots_for
from dbelief.sparse.row_form import FIRST_ROWS, RowForm
from dbelief.sparse.row_hash import hashes
from dbelief.sparse.row_limits import RowLimits

from .key_counters import KeyCounters

_GROWTH = 1.25

Initial = Callable[[np.ndarray], np.ndarray]
"""(n, width) float32 initial rows of (n,) int64 keys."""


class RowArrays(NamedTuple):
    """Contents of an arena: (n,) int64 keys, (n,) uint32 stamps, (n, stride) float32 rows with their state."""

    keys: np.ndarray
    stamps: np.ndarray
    numbers: np.ndarray


class Arena:
    """Rows by key. Not safe for threads: the bucket's lock is held.

    Parameters
    ----------
    salt
        Of the table: see `row_hash`.
    initial
        Initial rows of keys.
    limits
        Limits of its rows; only the number of rows and of pushes until a key gets one are used here.

    Attributes
    ----------
    count
        Its rows.
    refused
        Keys that got no row since it was full, counted at each push.
    counters
        Of keys without a row; None where a key gets one at its first push.
    """

    def __init__(self, form: RowForm, salt: int, initial: Initial, limits: RowLimits) -> None:
        self.form, self._salt, self._initial = form, salt, initial
        self._most = MOST_ROWS if limits.most is None else min(limits.most, MOST_ROWS)
        self.counters = KeyCounters(limits.after, limits.counters) if limits.after > 1 else None
        self.count = self.refused = 0
        self._resize(FIRST_ROWS, RowArrays(*(values[:0] for values in self._new(0))))
        self._slots = np.zeros(slots_for(FIRST_ROWS), np.uint32)

    @property
    def refuses(self) -> bool:
        """Whether a key may get no row: it is not due, or there is no room."""
        return self.counters is not None or self.refused > 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, with their keys, stamps and slots, and of the counters."""
        counters = 0 if self.counters is None else self.counters.held.nbytes
        return self.form.nbytes(self.count, self._slots.size) + counters

    def rows(self) -> RowArrays:
        """All rows, in place."""
        return RowArrays(*(values[: self.count] for values in self._held))

    def find(self, keys: np.ndarray) -> np.ndarray:
        """(n,) int32 numbers of the rows of (n,) int64 keys; -1 where a key has none."""
        return self._find(keys, hashes(keys, self._salt))[0]

    def read(self, keys: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """(n, width) float32 rows of (n,) int64 keys, in any order, in `out`; initial ones of keys that have none."""
        found, missing = self._find(keys, hashes(keys, self._salt))
        values = np.empty((keys.size, self.form.width), np.float32) if out is None else out
        gather(self._numbers, self.form.stride, 0, self.form.width, found, values.reshape(-1))
        if missing:
            without = found < 0
            values[without] = self._initial(keys[without])
        return values

    def touch(self, keys: np.ndarray, stamp: int) -> np.ndarray:
        """(n,) int32 numbers of the rows of (n,) int64 keys, each once, marked as used at `stamp`.

        Rows are made of keys that have none, in their order; -1 is that of a key that gets none.
        """
        hashed = hashes(keys, self._salt)
        found, missing = self._find(keys, hashed)
        if missing:
            self._make(keys, hashed, found)
        stamp_rows(found, stamp, self._held.stamps)
        return found

    def _find(self, keys: np.ndarray, hashed: np.ndarray) -> tuple[np.ndarray, int]:
        found = np.empty(keys.size, np.int32)
        return found, find(keys, hashed, self._held.keys, self._slots, found)

    def _make(self, keys: np.ndarray, hashed: np.ndarray, found: np.ndarray) -> None:
        """Make rows of the keys that have none, where they are due and there is room; their numbers go into `found`."""
        without = np.flatnonzero(found < 0)
        if self.counters is not None:
            without = without[self.counters.reached(hashed[without])]
        start, stop = self.count, min(self._most, self.count + without.size)
        self.refused += without.size - (stop - start)
        self.reserve(stop - start)
        without = without[: stop - start]
        made = np.arange(start, stop, dtype=np.int32)
        own = keys[without]
        self._held.keys[start:stop] = own
        new = self._held.numbers[start:stop]
        new[:, : self.form.width] = self._initial(own)
        for (first, end), (_, value) in zip(pairwise(self.form.edges[1:]), self.form.state.values(), strict=True):
            new[:, first:end] = value
        insert(hashed[without], made, self._slots)
        self.count = stop
        found[without] = made

    def reserve(self, more: int) -> None:
        """Make room for so many more rows, as far as the arena may have them: no push fails then for want of memory."""
        stop = min(self._most, self.count + more)
        if stop > self._held.keys.size:
            self._resize(max(stop, int(_GROWTH * self._held.keys.size)), self.rows())
        if slots_for(stop) > self._slots.size:
            self._index(stop)

    def parts(self, found: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Copies of rows, in one array for `write`; and the rows and each part of their state in it, row by row."""
        copies = np.empty(found.size * self.form.stride, np.float32)
        edges = self.form.edges
        gather_parts(self._numbers, edges, found, copies)
        ends = (found.size * edges).tolist()
        return copies, [copies[first:end] for first, end in pairwise(ends)]

    def write(self, found: np.ndarray, copies: np.ndarray) -> None:
        """Write rows and their state, as `parts` gave them."""
        scatter_parts(copies, self.form.edges, found, self._numbers)

    def remove(self, gone: np.ndarray) -> np.ndarray:
        """Remove the rows where (rows,) bool `gone` is true; returns their keys.

        Cost: a pass over all rows, and meanwhile a copy of those that stay.
        """
        stay = ~gone
        keys: np.ndarray = self._held.keys[: self.count][gone]
        for values in self.rows():
            values[: int(stay.sum())] = values[stay]
        self.count -= keys.size
        self._index()
        return keys

    def load(self, rows: RowArrays) -> None:
        """Hold these rows, as `rows` gave them, in place of all others."""
        self.count = rows.keys.size
        self._resize(max(FIRST_ROWS, self.count), rows)
        self._index()

    @property
    def _numbers(self) -> np.ndarray:
        return self._held.numbers.reshape(-1)

    def _new(self, capacity: int) -> RowArrays:
        numbers = np.empty((capacity, self.form.stride), np.float32)
        return RowArrays(np.empty(capacity, np.int64), np.empty(capacity, np.uint32), numbers)

    def _resize(self, capacity: int, rows: RowArrays) -> None:
        """Allocate room for so many rows, and copy these to its beginning."""
        held = self._new(capacity)
        for values, old in zip(held, rows, strict=True):
            values[: len(old)] = old
        self._held = held

    def _index(self, room: int = 0) -> None:
        """Make the index of all rows, with room for so many."""
        self._slots = np.zeros(slots_for(max(FIRST_ROWS, self.count, room)), np.uint32)
        insert(hashes(self._held.keys[: self.count], self._salt), np.arange(self.count, dtype=np.int32), self._slots)
