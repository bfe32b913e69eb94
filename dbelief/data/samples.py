"""One set of samples, wherever it is kept: in memory as rows, sparse, or in files that are read unit by unit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any, Protocol

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.nn import Batch, Model, ReadsSparse

from .splits import permutation

SETS = ("train", "validation", "test")
"""The sets of a job's data."""


class Order(Protocol):
    """Order of the samples in one epoch; an array is one."""

    def __getitem__(self, places: slice, /) -> np.ndarray:
        """Indices of the samples at places [start, stop): int64, shape (stop - start,)."""
        ...


class BatchArrays(Protocol):
    """Arrays that one set gathers its mini-batches into.

    Attributes
    ----------
    size : int
        Most samples of a mini-batch.
    inputs, targets
        As `Batch` has them, of `size` samples.
    """

    size: int
    targets: np.ndarray

    @property
    def inputs(self) -> Any:
        """See above."""
        ...

    def expect(self, order: Order, start: int, stop: int) -> None:
        """Announce that the samples at places [start, stop) of an order are gathered next, in order."""
        ...


class AllInMemory:
    """Part of the buffers of a set that is in memory."""

    def expect(self, order: Order, start: int, stop: int) -> None:
        """See `BatchArrays`: there is nothing to read ahead."""


def check_indices(indices: np.ndarray, size: int, n: int) -> None:
    """Raise ValueError unless these are 1 to `size` indices of n samples."""
    m = len(indices)
    if indices.dtype != np.int64 or indices.ndim != 1 or not 1 <= m <= size:
        raise ValueError(
            f"indices are {indices.dtype} of shape {indices.shape}, must be int64 of shape (m,), m from 1 to {size}"
        )
    lowest, highest = int(indices.min()), int(indices.max())
    if lowest < 0 or highest >= n:
        raise ValueError(f"index {lowest if lowest < 0 else highest} is out of range for {n} samples")


class Samples(ABC):
    """One set of samples.

    Attributes
    ----------
    inputs
        All inputs as they are stored, in the order of the source. Where they are not in memory, this reads them.
    targets : int64, shape (n,), labels from 0; or float32, shape (n, k)
        The like.
    groups : int64, shape (n,), or None
        Samples with the same number form a group and have the same label: frames of one recording, for example.
    scale : float
        Factor that inputs are multiplied by when they are gathered, without unit; 1/255 for pixels.
    """

    inputs: Any
    targets: np.ndarray
    groups: np.ndarray | None
    scale: float

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples n."""

    @property
    @abstractmethod
    def features(self) -> tuple[int, ...]:
        """Shape of one sample's inputs."""

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether inputs are whole numbers, int64, as they are stored."""

    @property
    def width(self) -> int | None:
        """Numbers in a sample's target; None where it is a label."""
        return self.targets.shape[1] if self.targets.ndim == 2 else None

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in memory."""

    @abstractmethod
    def buffer(self, size: int) -> BatchArrays:
        """Arrays for mini-batches of up to `size` samples."""

    @abstractmethod
    def gather(self, indices: np.ndarray, out: Any) -> Batch:
        """Gather a mini-batch on the host.

        Parameters
        ----------
        indices : int64, shape (m,)
            Samples, each from 0 to n - 1; 1 to `out.size` of them.
        out
            Made by `buffer`, of this set or of one whose samples have the same types and shapes.

        Returns
        -------
        Batch
            Views into `out`, valid until the next call.

        Raises
        ------
        ValueError
            An index is out of range, there are too many or none, or the buffer is for other samples.
        """

    def class_counts(self, classes: int) -> np.ndarray:
        """Samples of each label: int64, shape (classes,)."""
        return np.bincount(self.targets, minlength=classes)

    @abstractmethod
    def head(self, n: int) -> Samples:
        """The first n samples in memory, or all where there are fewer."""

    def source_order(self) -> Order:
        """The order of the source."""
        return np.arange(len(self))

    @abstractmethod
    def largest(self, n: int) -> np.ndarray:
        """The largest absolute value of each input among the first n samples, as models get it: (features...)."""

    def dense(self) -> Samples:
        """The same set, whose inputs are arrays: itself, but for a sparse set."""
        return self

    def read_by(self, model: Model, backend: Backend) -> Samples:
        """The same set, whose mini-batches are as this model reads them there: sparse rows on the host, or arrays."""
        sparse = isinstance(model, ReadsSparse) and model.reads_sparse and backend.name == "numpy"
        return self if sparse else self.dense()

    def at_once(self, most: int) -> int:
        """How many samples of the set to evaluate at a time, 1 to `most`; as arrays they are of bounded size."""
        return max(1, min(most, len(self)))

    def batch_bytes(self, size: int) -> int:
        """The most that the inputs of a mini-batch of `size` samples take, in bytes."""
        return size * prod(self.features) * (8 if self.whole else 4)

    def order(self, seed: int, epoch: int) -> Order:
        """Order of the samples in one epoch: the same in every process.

        Parameters
        ----------
        seed : int
            The job's.
        epoch : int
            From 0.
        """
        return permutation(len(self), seed, epoch)
