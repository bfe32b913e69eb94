"""Rows and keys of a pull, in the order of the table's buckets, and where shards may write them in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dbelief.errors import UserError
from dbelief.sparse.table import MOST_KEYS, SparseTable

from .rows_call import WantedRows


class SortedRows:
    """Rows of a table that a pull receives, in the order of its buckets.

    Parameters
    ----------
    keys
        (n,) int64, each once.
    room
        Array whose beginning receives sorted keys and rows; it begins at number `at` of one that shards may access.
        None: they have arrays of their own.

    Attributes
    ----------
    wanted
        By bucket.
    """

    def __init__(self, table: SparseTable, keys: np.ndarray, room: np.ndarray | None, at: int) -> None:
        self._order, parts = table.runs(keys)
        if (most := max((own.stop - own.start for _, own in parts), default=0)) > MOST_KEYS:
            raise UserError(
                f"table {table.name!r}: {most:,} distinct keys of one bucket in a pull, and {MOST_KEYS:,} are the "
                "most: give the table more buckets, or the batch fewer samples"
            )
        self._kept = room is None
        ordered, self._rows = arrays_in(room, keys.size, table.width)
        ordered[:] = keys[self._order]
        self.wanted = wanted_in(parts, ordered, self._rows, at)

    def as_given(self) -> np.ndarray:
        """(n, width) rows in the order of the keys before they were sorted; the received array where they were."""
        if isinstance(self._order, slice):
            return self._rows if self._kept else self._rows.copy()
        found = np.empty_like(self._rows)
        found[self._order] = self._rows
        return found


def arrays_in(room: np.ndarray | None, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(count,) int64 and (count, width) float32, one behind the other in an array; without one: of their own."""
    if room is None:
        return np.empty(count, np.int64), np.empty((count, width), np.float32)
    return room[: 2 * count].view(np.int64), room[2 * count : (2 + width) * count].reshape(count, width)


def wanted_in(parts: Sequence[tuple[int, slice]], keys: np.ndarray, rows: np.ndarray, at: int) -> dict[int, WantedRows]:
    """By segment, its part of keys and rows, which may lie in an array from its number `at` on."""
    width, rows_at = rows.shape[1], at + 2 * keys.size
    return {
        index: WantedRows(keys[own], rows[own].reshape(-1), at + 2 * own.start, rows_at + width * own.start)
        for index, own in parts
    }
