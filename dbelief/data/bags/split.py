"""Samples with bags of keys in memory, and mini-batches of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dbelief.data.samples import AllInMemory, Samples, check_indices
from dbelief.nn import NO_NUMBERS, BagRows, Batch, KeyRows

from .batch import SparseBatch


@dataclass(frozen=True, eq=False)
class BagSplit(Samples):
    """One set of samples with bags of keys.

    Attributes
    ----------
    stored : BagRows
        Samples of all sets from the same files.
    rows : int64, shape (n,)
        Those of this set.
    targets : int64, shape (n,)
        Labels from 0.
    groups, scale
        None and 1.
    """

    stored: BagRows
    rows: np.ndarray
    targets: np.ndarray
    groups: None = None
    scale: float = 1.0

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.rows)

    @property
    def inputs(self) -> BagRows:
        """See `Samples`: a copy of the set's bags."""
        return self.stored.taken(self.rows)

    @property
    def features(self) -> tuple[int, ...]:
        """See `Samples`: there are no numbers beside the bags."""
        return NO_NUMBERS

    @property
    def whole(self) -> bool:
        """See `Samples`."""
        return False

    @property
    def nbytes(self) -> int:
        """See `Samples`; of samples that sets share, those of this set."""
        return self._bytes(self.rows) + self.rows.nbytes + self.targets.nbytes

    def head(self, n: int) -> BagSplit:
        """See `Samples`; these are views."""
        return replace(self, rows=self.rows[:n], targets=self.targets[:n])

    def largest(self, n: int) -> np.ndarray:
        """See `Samples`."""
        return np.zeros(NO_NUMBERS, np.float32)

    def batch_bytes(self, size: int) -> int:
        """See `Samples`: of the mean sample."""
        return size * self._bytes(self.rows) // max(1, len(self))

    def buffer(self, size: int) -> BagBuffer:
        """See `Samples`."""
        return BagBuffer(self, size)

    def gather(self, indices: np.ndarray, out: BagBuffer) -> Batch:
        """See `Samples`: inputs are BagRows, in arrays of their own."""
        check_indices(indices, out.size, len(self))
        out.inputs = self.stored.taken(self.rows[indices])
        targets = out.targets[: len(indices)]
        np.take(self.targets, indices, axis=0, out=targets, mode="clip")
        return Batch(out.inputs, targets)

    def _bytes(self, rows: np.ndarray) -> int:
        """Bytes of the bags of some samples: a key, its value, and a bag's end."""
        held = self.stored.columns.values()
        return sum(12 * int((own.indptr[rows + 1] - own.indptr[rows]).sum()) + 8 * len(rows) for own in held)


class BagBuffer(AllInMemory):
    """Targets of a mini-batch of up to `size` samples, and its bags, which are made anew for each; not thread-safe."""

    def __init__(self, split: BagSplit, size: int) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, must be 1 or more")
        self.size = size
        self.inputs = split.stored.taken(split.rows[:0])
        self.targets = np.empty(size, np.int64)


def stored(batch: SparseBatch) -> BagRows:
    """The bags of a batch as they are kept in memory; keys and values are shared."""
    return BagRows(
        {name: KeyRows(np.append(bag.offsets, len(bag.keys)), bag.keys, bag.values) for name, bag in batch.bags.items()}
    )
