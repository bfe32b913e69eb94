"""Sparse samples in memory, and mini-batches of them: sparse, or dense for models that read arrays.

The sets that are split off one file share its rows, and each has the indices of its own.
Memory: 8 bytes for each number, and 24 for each row (its end, its index, its label).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.errors import DataError
from dbelief.nn import Batch, SparseRows

from .samples import AllInMemory, BatchArrays, Samples, check_indices

LARGEST_DENSE_SET = 1 << 34
"""16 GiB. The rows of a larger set are not made dense as a whole."""

LARGEST_DENSE_BATCH = 1 << 31
"""2 GiB. A mini-batch that needs more as dense rows is refused before memory is allocated."""

_DENSE_BLOCK = 1 << 28
"""256 MiB: what is evaluated at a time needs at most that as dense rows, or one row."""


@dataclass(frozen=True, eq=False)
class SparseSplit(Samples):
    """One set of sparse samples.

    Attributes
    ----------
    stored : SparseRows
        Rows of all sets from one source, which are consistent: see `of`.
    rows : int64, shape (n,)
        Those of this set.
    targets : int64, shape (n,), labels from 0; or float32, shape (n, k); C-contiguous
    gives_dense : bool
        Whether mini-batches are arrays: see `dense`.
    groups, scale
        None and 1.
    """

    stored: SparseRows
    rows: np.ndarray
    targets: np.ndarray
    gives_dense: bool = False
    groups: None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        kept = self.stored
        kinds = [array.dtype.name for array in (kept.indptr, kept.columns, kept.values, self.rows)]
        if kinds != ["int64", "int32", "float32", "int64"]:
            raise ValueError(
                f"ends, columns, values and rows are {', '.join(kinds)}, must be int64, int32, float32, int64"
            )
        if len(self.rows) != len(self.targets):
            raise ValueError(f"{len(self.rows)} rows, but {len(self.targets)} targets")

    @classmethod
    def of(cls, inputs: SparseRows, targets: np.ndarray) -> SparseSplit:
        """All rows as one set.

        Raises
        ------
        ValueError
            They are inconsistent: compiled loops do not check them.
        """
        inputs.check()
        return cls(inputs, np.arange(len(inputs)), targets)

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.rows)

    @cached_property
    def inputs(self) -> Any:
        """See `Samples`: a copy of the set's rows, kept from then on; sparse, or float32 (n, features) as of `dense`.

        Raises
        ------
        DataError
            As dense rows they need more than `LARGEST_DENSE_SET` bytes.
        """
        size = 4 * len(self) * self.stored.features
        if self.gives_dense and size > LARGEST_DENSE_SET:
            raise DataError(f"{len(self)} rows of {self.stored.features} features are {size >> 30} GiB as dense rows")
        out = SparseBuffer(self, max(1, len(self)))
        out.gather(self.stored, self.rows)
        found = SparseRows(out.indptr[: len(self) + 1], out.columns, out.values, self.stored.features)
        return found.dense() if self.gives_dense else found

    @property
    def features(self) -> tuple[int, ...]:
        """See `Samples`."""
        return (self.stored.features,)

    @property
    def whole(self) -> bool:
        """See `Samples`."""
        return False

    @property
    def mean_numbers(self) -> float:
        """Mean count of the numbers of a sample."""
        return float(self._counts().mean()) if len(self) else 0.0

    @property
    def nbytes(self) -> int:
        """See `Samples`; of rows that sets share, those of this set."""
        counts, kept = self._counts(), self.stored
        each = kept.columns.itemsize + kept.values.itemsize
        return each * int(counts.sum()) + kept.indptr.itemsize * len(self) + self.rows.nbytes + self.targets.nbytes

    def head(self, n: int) -> SparseSplit:
        """See `Samples`; these are views."""
        return replace(self, rows=self.rows[:n], targets=self.targets[:n])

    def dense(self) -> SparseSplit:
        """See `Samples`; the rows are shared."""
        return replace(self, gives_dense=True)

    def at_once(self, most: int) -> int:
        """See `Samples`: fewer where dense rows would be large."""
        fits = _DENSE_BLOCK // (4 * self.stored.features) if self.gives_dense else most
        return max(1, min(most, len(self), fits))

    def largest(self, n: int) -> np.ndarray:
        """See `Samples`."""
        found = np.zeros(self.stored.features, np.float32)
        batch = replace(self, gives_dense=False).head(n)
        if len(batch):
            inputs = batch.inputs
            np.maximum.at(found, inputs.columns, np.abs(inputs.values))
        return found

    def batch_bytes(self, size: int) -> int:
        """See `Samples`: of the rows with the most numbers."""
        if self.gives_dense:
            return super().batch_bytes(size)
        counts = np.sort(self._counts())[-size:]
        return int(counts.sum()) * 8 + 8 * (size + 1)

    def buffer(self, size: int) -> BatchArrays:
        """See `Samples`.

        Raises
        ------
        DataError
            A batch needs more than `LARGEST_DENSE_BATCH` bytes as dense rows.
        """
        return DenseBuffer(self, size) if self.gives_dense else SparseBuffer(self, size)

    def gather(self, indices: np.ndarray, out: Any) -> Batch:
        """See `Samples`: inputs are SparseRows, or float32 (m, features) as of `dense`."""
        check_indices(indices, out.size, len(self))
        out.check(self)
        targets = out.targets[: len(indices)]
        np.take(self.targets, indices, axis=0, out=targets, mode="clip")
        return Batch(out.gather(self.stored, self.rows[indices]), targets)

    def _counts(self) -> np.ndarray:
        """Numbers of each row: int64, shape (n,)."""
        return np.asarray(self.stored.indptr[self.rows + 1] - self.stored.indptr[self.rows])


class SparseBuffer(AllInMemory):
    """Arrays for a mini-batch of up to `size` sparse samples; not thread-safe.

    They grow where a batch has more numbers than any before.

    Attributes
    ----------
    size : int
    indptr : int64, shape (size + 1,)
    columns : int32, values : float32
        Of one length, as many numbers as there is room for.
    targets : as the set's targets, (size,) or (size, k)
    """

    def __init__(self, split: SparseSplit, size: int) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, must be 1 or more")
        self.size, self._features = size, split.stored.features
        self.indptr = np.zeros(size + 1, np.int64)
        self.columns, self.values = np.empty(0, np.int32), np.empty(0, np.float32)
        self.targets = np.empty((size, *split.targets.shape[1:]), split.targets.dtype)

    @property
    def inputs(self) -> SparseRows:
        """What was gathered last, and rows behind it."""
        return SparseRows(self.indptr, self.columns, self.values, self._features)

    def check(self, split: SparseSplit) -> None:
        """Raise ValueError unless the buffer fits samples of this set."""
        mine = self._features, self.targets.dtype, self.targets.shape[1:]
        theirs = split.stored.features, split.targets.dtype, split.targets.shape[1:]
        if mine != theirs:
            raise ValueError(f"the buffer holds features and targets {mine}, the set has {theirs}")

    def gather(self, stored: SparseRows, rows: np.ndarray) -> SparseRows:
        """Copy rows (int64, in range) and return them as views; cost: their numbers read and written once."""
        m = len(rows)
        indptr = self.indptr[: m + 1]
        np.subtract(stored.indptr[rows + 1], stored.indptr[rows], out=indptr[1:])
        np.cumsum(indptr[1:], out=indptr[1:])
        if (count := int(indptr[m])) > len(self.columns):
            self.columns, self.values = np.empty(count, np.int32), np.empty(count, np.float32)
        _copy_rows(stored.indptr, stored.columns, stored.values, rows, indptr, self.columns, self.values)
        return SparseRows(indptr, self.columns[:count], self.values[:count], self._features)


class DenseBuffer(AllInMemory):
    """Arrays for a mini-batch of up to `size` sparse samples as dense rows; not thread-safe.

    Attributes
    ----------
    size : int
    inputs : float32, shape (size, features)
    targets : as the set's targets, (size,) or (size, k)
    """

    def __init__(self, split: SparseSplit, size: int) -> None:
        self._sparse = SparseBuffer(split, size)
        features = split.stored.features
        needed = 4 * size * features
        if needed > LARGEST_DENSE_BATCH:
            raise DataError(
                f"a mini-batch of {size:,} samples of {features:,} features is {needed / 2**30:.1f} GiB as dense rows, "
                f"more than {LARGEST_DENSE_BATCH >> 30}; layers that begin with dense read sparse rows, on one CPU"
            )
        self.size, self.targets, self.check = size, self._sparse.targets, self._sparse.check
        self.inputs = np.empty((size, features), np.float32)

    def gather(self, stored: SparseRows, rows: np.ndarray) -> np.ndarray:
        """Write rows (int64, in range) and return them as a view; cost: the view written once, besides the numbers."""
        return self._sparse.gather(stored, rows).dense(self.inputs[: len(rows)])


@kernel("read int64", "read int32", "read float32", "read int64", "read int64", "write int32", "write float32", "void")
def _copy_rows(indptr: Any, columns: Any, values: Any, rows: Any, ends: Any, to_columns: Any, to_values: Any) -> None:
    for row in range(rows.size):
        start, there = indptr[rows[row]], ends[row]
        for place in range(ends[row + 1] - there):
            to_columns[there + place] = columns[start + place]
            to_values[there + place] = values[start + place]
