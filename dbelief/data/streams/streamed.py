"""Numbers that are read unit by unit, as mini-batches; and the like in memory, in the same order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dbelief.data.dataset import Split
from dbelief.data.samples import Order
from dbelief.nn import Batch

from .unit_order import Units
from .unit_samples import UnitBuffer, UnitSamples
from .unit_source import UnitSource


class StreamedSplit(UnitSamples):
    """`UnitSamples` whose inputs are numbers."""

    @property
    def inputs(self) -> np.ndarray:
        """See `Samples`; each time it reads all units."""
        return read_all(self.source, self.units, self.scale).inputs

    def head(self, n: int) -> Split:
        """See `Samples`; reads the first units."""
        units = self.first_units(n)
        inputs, targets = (np.concatenate(arrays)[:n] for arrays in zip(*units, strict=True))
        return Split(inputs, targets, self.scale)

    def buffer(self, size: int) -> StreamBuffer:
        """See `Samples`."""
        return StreamBuffer(self, size)

    def gather(self, indices: np.ndarray, out: StreamBuffer) -> Batch:
        """See `Samples`: units that are not in memory are read."""
        m = len(indices)
        stored, inputs, targets = out.stored[:m], out.inputs[:m], out.targets[:m]
        for arrays, rows, places in self.parts(indices, out):
            if len(rows) == m:
                np.take(arrays.inputs, places, axis=0, out=stored, mode="clip")
                np.take(arrays.targets, places, axis=0, out=targets, mode="clip")
            else:
                stored[rows] = arrays.inputs[places]
                targets[rows] = arrays.targets[places]
        if stored.dtype == np.uint8 or self.scale != 1.0:
            np.multiply(stored, np.float32(self.scale), out=inputs, dtype=np.float32)
        return Batch(inputs, targets)


class StreamBuffer(UnitBuffer):
    """Arrays for mini-batches of a streamed set, and the units that they are gathered from; for one user.

    Attributes
    ----------
    inputs, targets
        See `BatchArrays`.
    stored
        Inputs as the units have them; the same memory as `inputs`, but for uint8.
    """

    def __init__(self, samples: StreamedSplit, size: int) -> None:
        super().__init__(samples, size)
        source = samples.source
        shape = (size, *source.features)
        self.inputs = np.empty(shape, np.float32 if source.dtype == np.uint8 else source.dtype)
        self.stored = np.empty(shape, np.uint8) if source.dtype == np.uint8 else self.inputs
        self.targets = np.empty(size, np.int64) if source.width is None else np.empty((size, source.width), np.float32)


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
