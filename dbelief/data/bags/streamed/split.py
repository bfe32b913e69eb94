"""Bags of keys that are read unit by unit, as mini-batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from dbelief.data.bags.split import BagSplit
from dbelief.data.streams.unit_samples import UnitBuffer, UnitSamples
from dbelief.nn import BagRows, Batch


class StreamedBags(UnitSamples):
    """`UnitSamples` whose inputs are BagRows."""

    @property
    def inputs(self) -> BagRows:
        """See `Samples`; each time it reads all units."""
        return BagRows.joined([arrays.inputs for arrays in self.first_units(len(self))])

    def head(self, n: int) -> BagSplit:
        """See `Samples`; reads the first units."""
        units = self.first_units(n)
        targets = np.concatenate([arrays.targets for arrays in units])[:n]
        return BagSplit(BagRows.joined([arrays.inputs for arrays in units]), np.arange(len(targets)), targets)

    def batch_bytes(self, size: int) -> int:
        """See `Samples`: of the mean sample."""
        return size * self.all_bytes // len(self)

    def buffer(self, size: int) -> StreamedBagBuffer:
        """See `Samples`."""
        return StreamedBagBuffer(self, size)

    def gather(self, indices: np.ndarray, out: StreamedBagBuffer) -> Batch:
        """See `Samples`: units that are not in memory are read; inputs are BagRows, in arrays of their own."""
        targets, bags, all_rows = out.targets[: len(indices)], list[BagRows](), list[np.ndarray]()
        for arrays, rows, places in self.parts(indices, out):
            targets[rows] = arrays.targets[places]
            bags.append(arrays.inputs.taken(places))
            all_rows.append(rows)
        out.inputs = bags[0] if len(bags) == 1 else BagRows.joined(bags).taken(np.argsort(np.concatenate(all_rows)))
        return Batch(out.inputs, targets)


class StreamedBagBuffer(UnitBuffer):
    """Targets of a mini-batch, its bags, and the units that they are gathered from; for one user.

    Attributes
    ----------
    inputs
        BagRows, which are made anew for each mini-batch; None before the first.
    """

    inputs: Any = None

    def __init__(self, samples: StreamedBags, size: int) -> None:
        super().__init__(samples, size)
        self.targets = np.empty(size, np.int64)
