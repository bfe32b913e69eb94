"""Mini-batches of one split, for those who were leased a range of an epoch's permutation."""

from __future__ import annotations

from dbelief.backend import Backend
from dbelief.data import BatchBuffer, Split, permutation
from dbelief.nn import Batch


class Batches:
    """Mini-batches of one split, by epoch and range of the epoch's seeded permutation."""

    def __init__(self, split: Split, batch: int, seed: int, backend: Backend) -> None:
        self._split = split
        self._buffer = BatchBuffer(split, batch)
        self._seed = seed
        self._backend = backend
        self._epoch = -1
        self._order = permutation(0, seed, 0)

    def __call__(self, epoch: int, start: int, stop: int) -> Batch:
        """The samples [start, stop) of an epoch, where the model computes."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(len(self._split), self._seed, epoch)
        batch = self._split.gather(self._order[start:stop], self._buffer)
        if self._backend.name == "numpy":
            return batch
        return Batch(self._backend.to_device(batch.inputs), self._backend.to_device(batch.targets))
