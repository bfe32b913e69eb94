"""Samples that are found by their index, as units of several each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .unit_source import UnitArrays, UnitSource


def unit_size(given: int | None, most: int, n: int) -> int:
    """Samples of a unit: as given, or `most`, but so few that n samples have some 40 units for their sets."""
    return given or max(1, min(most, n // 40))


class Indexed(Protocol):
    """Samples by index.

    Attributes
    ----------
    features, dtype, width
        As in `UnitSource`.
    where
        Name of the data in messages.
    """

    features: tuple[int, ...]
    dtype: np.dtype
    width: int | None
    where: str

    def read(self, indices: np.ndarray) -> UnitArrays:
        """The samples with these indices: int64, shape (m,). May be called from several threads.

        Raises
        ------
        DataError
            One cannot be read; names it.
        """
        ...

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """The targets of these samples alone."""
        return self.read(indices).targets


class Ranges(UnitSource):
    """Units of `block` samples each, the last one with the rest, as a `UnitSource`.

    Parameters
    ----------
    samples
        All samples.
    indices : int64, shape (n,)
        Those of this set, in its order.
    block
        Samples of a unit.
    """

    def __init__(self, samples: Indexed, indices: np.ndarray, block: int) -> None:
        self._samples, self._indices, self._block = samples, indices, block
        starts = range(0, len(indices), block)
        self.sizes: Sequence[int] = [min(block, len(indices) - start) for start in starts]
        self.features, self.dtype, self.width = samples.features, samples.dtype, samples.width

    def called(self, unit: int) -> str:
        """See `UnitSource`."""
        first = unit * self._block
        return f"{self._samples.where}, samples {first} to {first + self.sizes[unit] - 1} of the set"

    def read(self, unit: int) -> UnitArrays:
        """See `UnitSource`."""
        return self._samples.read(self._of(unit))

    def targets(self, unit: int) -> np.ndarray:
        """See `UnitSource`."""
        return self._samples.targets(self._of(unit))

    def _of(self, unit: int) -> np.ndarray:
        """Indices of the samples of a unit."""
        first = unit * self._block
        return self._indices[first : first + self._block]
