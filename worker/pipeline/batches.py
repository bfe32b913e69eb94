"""Mini-batches of one set of samples, for leases of a range of an epoch's order."""

from __future__ import annotations

from typing import Protocol

from dbelief.arrays.backend import Backend
from dbelief.data import Samples
from dbelief.nn import Batch


class BatchSource(Protocol):
    """Mini-batches by epoch and range of the epoch's order."""

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """Announce that the samples [start, stop) of an epoch are loaded next, in order: they may be read ahead."""
        ...

    def __call__(self, epoch: int, start: int, stop: int) -> Batch:
        """The samples [start, stop) of an epoch, on the device of the model; valid until the next call."""
        ...


class BatchLoader:
    """Mini-batches of one set of samples, by epoch and range of the epoch's seeded order.

    A mini-batch is valid until the next call: its arrays, also those on a device, are allocated once.
    """

    def __init__(self, samples: Samples, batch: int, seed: int, backend: Backend) -> None:
        self._samples = samples
        self._buffer = samples.buffer(batch)
        self._seed = seed
        arrays = () if backend.name == "numpy" else (self._buffer.inputs, self._buffer.targets)
        self._there = [backend.to_device(array) for array in arrays]
        self._epoch, self._order = 0, samples.order(seed, 0)
        self._expected = range(0)

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """See `BatchSource`."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._samples.order(self._seed, epoch)
        self._buffer.expect(self._order, start, stop)
        self._expected = range(start, stop)

    def __call__(self, epoch: int, start: int, stop: int) -> Batch:
        """See `BatchSource`."""
        if epoch != self._epoch or start not in self._expected:
            self.expect(epoch, start, stop)
        batch = self._samples.gather(self._order[start:stop], self._buffer)
        if not self._there:
            return batch
        there = [array[: len(batch)] for array in self._there]
        for array, host in zip(there, (batch.inputs, batch.targets), strict=True):
            array.set(host)
        return Batch(*there)
