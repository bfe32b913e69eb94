"""A set of samples that is read unit by unit, with a bound on memory; and the like in memory, in the same order."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dbelief.data.dataset import Split
from dbelief.data.samples import Order, Samples, check_indices
from dbelief.errors import DataError
from dbelief.nn import Batch

from .read_ahead import ReadAhead, bytes_per_sample
from .unit_order import UnitOrder, Units
from .unit_source import UnitSource


class StreamedSplit(Samples):
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

    Raises
    ------
    DataError
        The units of one window take more memory; names them.
    """

    groups = None

    def __init__(self, source: UnitSource, units: Units, memory: int, scale: float = 1.0) -> None:
        self.source, self.units, self.memory, self.scale = source, units, memory, scale
        self._firsts = units.firsts()
        largest = sorted(range(len(units.sizes)), key=lambda unit: units.sizes[unit])[-units.window :]
        needed = sum(units.sizes[unit] for unit in largest) * bytes_per_sample(source)
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
        return min(self.memory, len(self) * bytes_per_sample(self.source))

    @property
    def inputs(self) -> np.ndarray:
        """See `Samples`; each time it reads all units."""
        return read_all(self.source, self.units, self.scale).inputs

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

    def head(self, n: int) -> Split:
        """See `Samples`; reads the first units."""
        inputs, targets, found = list[np.ndarray](), list[np.ndarray](), 0
        for unit in range(len(self.units.sizes)):
            if found >= n:
                break
            arrays = self.source.read(unit)
            inputs.append(arrays.inputs[: n - found])
            targets.append(arrays.targets[: n - found])
            found += len(targets[-1])
        return Split(np.concatenate(inputs), np.concatenate(targets), self.scale)

    def largest(self, n: int) -> np.ndarray:
        """See `Samples`; reads the first units."""
        return self.head(n).largest(n)

    def order(self, seed: int, epoch: int) -> UnitOrder:
        """See `Samples`."""
        return self.units.order(seed, epoch)

    def source_order(self) -> UnitOrder:
        """See `Samples`."""
        return self.units.source_order()

    def buffer(self, size: int) -> StreamBuffer:
        """See `Samples`."""
        return StreamBuffer(self, size)

    def gather(self, indices: np.ndarray, out: StreamBuffer) -> Batch:
        """See `Samples`: units that are not in memory are read."""
        m = len(indices)
        if out.ahead.source is not self.source:
            raise ValueError("the buffer is of another set, whose units it holds")
        check_indices(indices, out.size, len(self))
        stored, inputs, targets = out.stored[:m], out.inputs[:m], out.targets[:m]
        unit_of = np.searchsorted(self._firsts, indices, "right") - 1
        for unit in dict.fromkeys(unit_of.tolist()):
            arrays = out.ahead.get(unit)
            rows = np.flatnonzero(unit_of == unit)
            places = indices[rows] - self._firsts[unit]
            if len(rows) == m:
                np.take(arrays.inputs, places, axis=0, out=stored, mode="clip")
                np.take(arrays.targets, places, axis=0, out=targets, mode="clip")
            else:
                stored[rows] = arrays.inputs[places]
                targets[rows] = arrays.targets[places]
        if stored.dtype == np.uint8 or self.scale != 1.0:
            np.multiply(stored, np.float32(self.scale), out=inputs, dtype=np.float32)
        return Batch(inputs, targets)


class StreamBuffer:
    """Arrays for mini-batches of a streamed set, and the units that they are gathered from; for one user.

    Attributes
    ----------
    size, inputs, targets
        See `BatchArrays`.
    stored
        Inputs as the units have them; the same memory as `inputs`, but for uint8.
    ahead
        The units in memory.
    """

    def __init__(self, samples: StreamedSplit, size: int) -> None:
        source = samples.source
        self.size = size
        shape = (size, *source.features)
        self.inputs = np.empty(shape, np.float32 if source.dtype == np.uint8 else source.dtype)
        self.stored = np.empty(shape, np.uint8) if source.dtype == np.uint8 else self.inputs
        self.targets = np.empty(size, np.int64) if source.width is None else np.empty((size, source.width), np.float32)
        self.ahead = ReadAhead(source, samples.memory)

    def expect(self, order: Any, start: int, stop: int) -> None:
        """See `BatchArrays`: units are read ahead in this order."""
        if isinstance(order, UnitOrder):
            self.ahead.plan(order.windows(start, stop))


@dataclass(frozen=True, eq=False)
class UnitSplit(Split):
    """Samples in memory, in the order in which a streamed set would have them."""

    units: Units = field(default_factory=lambda: Units(()))

    def order(self, seed: int, epoch: int) -> Order:
        """See `Samples`."""
        return self.units.order(seed, epoch)


def read_all(source: UnitSource, units: Units, scale: float) -> UnitSplit:
    """All samples of a source in memory, in its order. Memory: theirs, and one unit."""
    n = sum(source.sizes)
    inputs = np.empty((n, *source.features), source.dtype)
    targets = np.empty(n, np.int64) if source.width is None else np.empty((n, source.width), np.float32)
    first = 0
    for unit, size in enumerate(source.sizes):
        arrays = source.read(unit)
        inputs[first : first + size], targets[first : first + size] = arrays
        first += size
    return UnitSplit(inputs, targets, scale, None, units)
