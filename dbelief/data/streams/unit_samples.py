"""A set of samples that is read unit by unit, with a bound on memory: what is the same for inputs of any form."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from dbelief.data.samples import Samples, check_indices
from dbelief.errors import DataError

from .read_ahead import ReadAhead
from .unit_order import UnitOrder, Units
from .unit_source import UnitArrays, UnitSource


class UnitSamples(Samples):
    """Samples of a source of units, each read when it is used.

    Parameters
    ----------
    source
        The units.
    units
        Their sizes, and the window in which samples are shuffled.
    memory
        Bytes of samples in memory, for each user of a buffer: a mini-batch loader, an evaluation.
    scale
        As in `Samples`.

    Attributes
    ----------
    all_bytes
        Of all samples, if they were in memory.

    Raises
    ------
    DataError
        The units of one window take more memory; names them.
    """

    groups = None

    def __init__(self, source: UnitSource, units: Units, memory: int, scale: float = 1.0) -> None:
        self.source, self.units, self.memory, self.scale = source, units, memory, scale
        self._firsts = units.firsts()
        sizes = [source.bytes_of(unit) for unit in range(len(units.sizes))]
        self.all_bytes = sum(sizes)
        largest = sorted(range(len(sizes)), key=sizes.__getitem__)[-units.window :]
        needed = sum(sizes[unit] for unit in largest)
        if needed > memory:
            together = f", the largest of data.window: {units.window} together," if units.window > 1 else ""
            raise DataError(
                f"{source.called(largest[-1])}{together} needs {-(-needed // 2**20)} MiB of memory, more than "
                f"data.memory, {memory // 2**20}: raise it, or make units smaller"
            )

    def __len__(self) -> int:
        """See `Samples`."""
        return int(self._firsts[-1])

    @property
    def features(self) -> tuple[int, ...]:
        """See `Samples`."""
        return self.source.features

    @property
    def whole(self) -> bool:
        """See `Samples`."""
        return self.source.dtype == np.int64

    @property
    def width(self) -> int | None:
        """See `Samples`."""
        return self.source.width

    @property
    def nbytes(self) -> int:
        """See `Samples`: the bound, or all samples where they are fewer."""
        return min(self.memory, self.all_bytes)

    @cached_property
    def targets(self) -> np.ndarray:  # type: ignore[override]
        """See `Samples`; the first time it reads the targets of all units."""
        return np.concatenate([self.source.targets(unit) for unit in range(len(self.units.sizes))])

    def class_counts(self, classes: int) -> np.ndarray:
        """See `Samples`; reads the targets of all units."""
        counts = np.zeros(classes, np.int64)
        for unit in range(len(self.units.sizes)):
            counts += np.bincount(self.source.targets(unit), minlength=classes)
        return counts

    def largest(self, n: int) -> np.ndarray:
        """See `Samples`; reads the first units."""
        return self.head(n).largest(n)

    def order(self, seed: int, epoch: int) -> UnitOrder:
        """See `Samples`."""
        return self.units.order(seed, epoch)

    def source_order(self) -> UnitOrder:
        """See `Samples`."""
        return self.units.source_order()

    def first_units(self, n: int) -> list[UnitArrays]:
        """The first units, with n samples, or all where there are fewer; they are read."""
        count = max(1, int(np.searchsorted(self._firsts[:-1], n)))
        return [self.source.read(unit) for unit in range(count)]

    def parts(self, indices: np.ndarray, out: UnitBuffer) -> Iterator[tuple[UnitArrays, np.ndarray, np.ndarray]]:
        """The units of a mini-batch, in the order of their first samples; those that are not in memory are read.

        Parameters
        ----------
        indices, out
            As of `gather`, which raises the same.

        Yields
        ------
        UnitArrays, and int64 arrays of one length
            Of the unit's samples the places in the mini-batch, ascending, and in the unit.
        """
        if out.ahead.source is not self.source:
            raise ValueError("the buffer is of another set, whose units it holds")
        check_indices(indices, out.size, len(self))
        unit_of = np.searchsorted(self._firsts, indices, "right") - 1
        for unit in dict.fromkeys(unit_of.tolist()):
            arrays = out.ahead.get(unit)
            rows = np.flatnonzero(unit_of == unit)
            yield arrays, rows, indices[rows] - self._firsts[unit]


class UnitBuffer:
    """Part of the buffers of a set that is read unit by unit; for one user.

    Attributes
    ----------
    size
        See `BatchArrays`.
    ahead
        The units in memory.
    """

    def __init__(self, samples: UnitSamples, size: int) -> None:
        self.size = size
        self.ahead = ReadAhead(samples.source, samples.memory)

    def expect(self, order: Any, start: int, stop: int) -> None:
        """See `BatchArrays`: units are read ahead in this order."""
        if isinstance(order, UnitOrder):
            self.ahead.plan(order.windows(start, stop))
