"""A source of units in memory, which counts what is read."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from dbelief.data.streams.unit_source import UnitArrays, UnitSource
from dbelief.errors import DataError


class Counted(UnitSource):
    """Units of numbers: sample i has inputs (i, -i) and label i modulo 3.

    Attributes
    ----------
    reads
        Units in the order in which they were read.
    gate
        Reading waits for it.
    torn
        The unit that cannot be read.
    """

    features: tuple[int, ...] = (2,)
    dtype = np.dtype(np.float32)
    width: int | None = None

    def __init__(self, *sizes: int, torn: int = -1) -> None:
        self.sizes: Sequence[int] = sizes
        self.reads = list[int]()
        self.torn = torn
        self.gate = threading.Event()
        self.gate.set()
        self._firsts = np.concatenate([[0], np.cumsum(sizes)])

    def called(self, unit: int) -> str:
        return f"unit {unit}"

    def read(self, unit: int) -> UnitArrays:
        assert self.gate.wait(30), "the test opens the gate"
        self.reads.append(unit)
        if unit == self.torn:
            raise DataError(f"unit {unit} is torn")
        rows = np.arange(self._firsts[unit], self._firsts[unit + 1])
        return UnitArrays(np.stack([rows, -rows], axis=1).astype(np.float32), rows % 3)
