"""Bags of keys by column: inputs of layers whose rows lie in tables, and the rows that a mini-batch reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .sparse_rows import SparseRows

ReadRows = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Rows by table, (n, width) float32, of (n,) int64 keys by table, each once."""


@dataclass(frozen=True, eq=False)
class KeyRows:
    """The bags of one column: that of sample i has keys[indptr[i] : indptr[i + 1]]; a key may be there several times.

    Attributes
    ----------
    indptr : int64, shape (m + 1,)
        Ascending, from 0.
    keys : int64, shape (k,)
    values : float32, shape (k,)
        Factors of the keys' rows.
    """

    indptr: np.ndarray
    keys: np.ndarray
    values: np.ndarray

    def taken(self, samples: np.ndarray) -> KeyRows:
        """A copy of the bags of these samples: (n,) int64, in range."""
        starts = self.indptr[samples]
        counts = self.indptr[samples + 1] - starts
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
        places = np.repeat(starts - indptr[:-1], counts) + np.arange(indptr[-1])
        return KeyRows(indptr, self.keys[places], self.values[places])

    @staticmethod
    def joined(parts: Sequence[KeyRows]) -> KeyRows:
        """A copy of the bags of several, one at least, one after the other."""
        firsts = np.cumsum([0, *(len(part.keys) for part in parts)])
        ends = [part.indptr[1:] + first for part, first in zip(parts, firsts, strict=False)]
        keys, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "values"))
        return KeyRows(np.concatenate([np.zeros(1, np.int64), *ends]), keys, values)


@dataclass(frozen=True, eq=False)
class BagRows:
    """Samples with a bag of keys in each column, in place of numbers.

    Attributes
    ----------
    columns
        By name, of m samples each; at least one.
    """

    columns: Mapping[str, KeyRows]

    def __len__(self) -> int:
        """Number of samples m."""
        return len(next(iter(self.columns.values())).indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """(m, 0): there are no numbers beside the bags."""
        return len(self), 0

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        return np.dtype(np.float32)

    @property
    def bits(self) -> np.ndarray:
        """All bits of keys, values and ends: uint32, shape (1, any); a copy."""
        parts = [array.view(np.uint32) for own in self.columns.values() for array in (own.indptr, own.keys, own.values)]
        return np.concatenate(parts)[np.newaxis]

    def taken(self, samples: np.ndarray) -> BagRows:
        """A copy of these samples: (n,) int64, in range."""
        return BagRows({name: own.taken(samples) for name, own in self.columns.items()})

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(own.indptr.nbytes + own.keys.nbytes + own.values.nbytes for own in self.columns.values())

    @staticmethod
    def joined(parts: Sequence[BagRows]) -> BagRows:
        """A copy of the samples of several, one at least, with the same columns, one after the other."""
        return BagRows({name: KeyRows.joined([part.columns[name] for part in parts]) for name in parts[0].columns})


class BatchRows:
    """Rows of tables that one mini-batch reads, each key once, and the gradients that layers add to them.

    Parameters
    ----------
    bags
        Of the mini-batch.
    reads
        Columns that each table is read for, by its name.
    read
        Called once, with the distinct keys of each table.

    Attributes
    ----------
    keys, rows, gradients
        By table: (n,) int64, (n, width) float32, and the like, which begin as 0.
    """

    def __init__(self, bags: BagRows, reads: Mapping[str, Sequence[str]], read: ReadRows) -> None:
        self._places: dict[tuple[str, str], SparseRows] = {}
        self.keys: dict[str, np.ndarray] = {}
        numbered: dict[tuple[str, ...], tuple[np.ndarray, list[SparseRows]]] = {}
        for table, columns in reads.items():
            asked = tuple(columns)
            if asked not in numbered:
                numbered[asked] = _numbered([bags.columns[name] for name in asked])
            self.keys[table], rows = numbered[asked]
            self._places |= {(table, name): own for name, own in zip(asked, rows, strict=True)}
        self.rows = read(self.keys)
        self.gradients = {table: np.zeros_like(rows) for table, rows in self.rows.items()}

    def bags(self, table: str, column: str) -> SparseRows:
        """Bags of a column as sparse rows: column j stands for row j of the table's `rows`; it may be there twice."""
        return self._places[table, column]


def _numbered(columns: Sequence[KeyRows]) -> tuple[np.ndarray, list[SparseRows]]:
    """The distinct keys of some columns, ascending, and the columns' bags by the places of their keys."""
    keys, places = np.unique(np.concatenate([own.keys for own in columns]), return_inverse=True)
    found, start = list[SparseRows](), 0
    for own in columns:
        stop = start + len(own.keys)
        found.append(SparseRows(own.indptr, places[start:stop].astype(np.int32), own.values, len(keys)))
        start = stop
    return keys, found
