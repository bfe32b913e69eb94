"""Rows of numbers that are mostly 0, in compressed form (CSR): a mini-batch's inputs, or those of a whole set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of which the numbers other than 0 are stored.

    Row i has values[indptr[i] : indptr[i + 1]] in columns of the same places; what is in no column is 0.

    Attributes
    ----------
    indptr : int64, shape (m + 1,)
        Ascending; it need not begin with 0.
    columns : int32, shape (k,)
        From 0 to features - 1, ascending within a row. Nothing checks them here.
    values : float32, shape (k,)
    features : int
        Numbers of a row.
    of : int or None
        Where these are some columns of wider rows, numbered anew: numbers of such a row.
    """

    indptr: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    features: int
    of: int | None = None

    def __len__(self) -> int:
        """Number of rows m."""
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """(m, features), as of the same rows in an array; of chosen columns that of all."""
        return len(self), self.features if self.of is None else self.of

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        return self.values.dtype

    @property
    def bits(self) -> np.ndarray:
        """All bits of the rows' numbers and places: uint32, shape (1, any); a copy."""
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        columns, values = self.columns[first:last], self.values[first:last]
        ends = (self.indptr[1:] - first).astype(np.uint32)
        return np.concatenate([ends, columns.view(np.uint32), values.view(np.uint32)])[np.newaxis]

    def check(self) -> None:
        """Check that ends ascend and columns exist; cost: a pass over `columns`.

        Raises
        ------
        ValueError
        """
        ends, columns = self.indptr, self.columns
        if len(ends) < 1 or ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] > min(len(columns), len(self.values)):
            raise ValueError(f"indptr must ascend from 0 or more to at most {len(columns)} columns and values")
        if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < self.features:
            raise ValueError(f"columns are {columns.min()} to {columns.max()}, must be 0 to {self.features - 1}")

    def dense(self, out: np.ndarray | None = None) -> np.ndarray:
        """The rows as an array.

        Parameters
        ----------
        out : float32, shape (m, features), optional
            Where they are written.

        Returns
        -------
        float32, shape (m, features)
            `out`, or a new array.
        """
        made = np.empty((len(self), self.features), np.float32) if out is None else out
        made.fill(0)
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        of_row = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        made[of_row, self.columns[first:last]] = self.values[first:last]
        return made
