"""Interface of a source of units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class UnitArrays(NamedTuple):
    """Samples of one unit.

    Attributes
    ----------
    inputs : uint8, float32 or int64, shape (n, features...), C-contiguous; or BagRows
    targets : int64, shape (n,), or float32, shape (n, k), C-contiguous
    """

    inputs: Any
    targets: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.inputs.nbytes) + self.targets.nbytes


class UnitSource(Protocol):
    """Units of samples of the same types and shapes, each of which can be read again.

    Attributes
    ----------
    sizes
        Samples of each unit.
    features
        Shape of a sample's inputs.
    dtype
        Type of the inputs: uint8, float32 or int64.
    width
        Numbers in a sample's target; None where it is a label.
    """

    sizes: Sequence[int]
    features: tuple[int, ...]
    dtype: np.dtype
    width: int | None

    def read(self, unit: int) -> UnitArrays:
        """Read a unit; may be called from several threads.

        Raises
        ------
        DataError
            It cannot be read, or is not as it was; one line that names file and unit.
        """
        ...

    def targets(self, unit: int) -> np.ndarray:
        """The targets of a unit alone, as `read` gives them; raises as that does."""
        return self.read(unit).targets

    def called(self, unit: int) -> str:
        """Name of a unit in messages."""
        ...

    def bytes_of(self, unit: int) -> int:
        """Bytes of a unit in memory, before it is read."""
        return self.sizes[unit] * bytes_per_sample(self)


def bytes_per_sample(source: UnitSource) -> int:
    """Bytes of one sample in memory, where its inputs are numbers."""
    values = 1
    for size in source.features:
        values *= size
    return values * source.dtype.itemsize + (8 if source.width is None else 4 * source.width)
