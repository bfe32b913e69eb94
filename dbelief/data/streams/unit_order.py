"""Order of samples that are read unit by unit: units are shuffled, and then samples inside a window of units.

The order of an epoch depends on the sizes of the units, the seed and the epoch alone. Each part of it is computed by
itself: a process that resumes in the middle of an epoch continues in the same order, and reads no unit before that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dbelief.data.splits import permutation


@dataclass(frozen=True)
class Units:
    """Sizes of the units of a set of samples.

    Attributes
    ----------
    sizes : tuple of int
        Samples of each unit, 1 or more, in the order of the source.
    window : int
        Units whose samples are shuffled together, and which are in memory together.
    """

    sizes: tuple[int, ...]
    window: int = 1

    def firsts(self) -> np.ndarray:
        """Index of the first sample of each unit, and at the end their number: int64, shape (units + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])

    def order(self, seed: int, epoch: int) -> UnitOrder:
        """Order of an epoch. Cost: that of the number of units."""
        return UnitOrder(self, permutation(len(self.sizes), seed, epoch), (seed, epoch))

    def source_order(self) -> UnitOrder:
        """The order of the source."""
        return UnitOrder(self, np.arange(len(self.sizes)), None)


class UnitOrder:
    """Order of all samples in one epoch; consists of windows, each with the samples of several units.

    Parameters
    ----------
    units
        Their sizes.
    sequence : int64, shape (units,)
        The units in the order in which they are read.
    key
        Seed and epoch; None: the samples of a unit are in the order of the source.

    Attributes
    ----------
    ends : int64, shape (windows,)
        Place behind the last sample of each window, ascending.
    """

    def __init__(self, units: Units, sequence: np.ndarray, key: tuple[int, int] | None) -> None:
        self._firsts, self._sizes = units.firsts(), np.asarray(units.sizes, np.int64)
        most = units.window if key is not None else 1
        self._windows = [sequence[at : at + most] for at in range(0, len(sequence), most)]
        self._key = key
        self.ends = np.cumsum([self._sizes[window].sum() for window in self._windows], dtype=np.int64)
        self._held: tuple[int, np.ndarray] = -1, np.zeros(0, np.int64)  # the window that was computed last

    def __getitem__(self, places: slice) -> np.ndarray:
        """Indices of the samples at places [start, stop): int64, shape (stop - start,)."""
        start, stop, _ = places.indices(int(self.ends[-1]) if len(self.ends) else 0)
        parts = []
        while start < stop:
            window = int(np.searchsorted(self.ends, start, "right"))
            first = int(self.ends[window - 1]) if window else 0
            end = min(stop, int(self.ends[window]))
            parts.append(self._indices(window)[start - first : end - first])
            start = end
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def windows(self, start: int, stop: int) -> list[list[int]]:
        """The units of each window that has samples at places [start, stop), in order."""
        if start >= stop:
            return []
        first, last = np.searchsorted(self.ends, [start, stop - 1], "right")
        return [[int(unit) for unit in window] for window in self._windows[int(first) : int(last) + 1]]

    def _indices(self, window: int) -> np.ndarray:
        """Indices of all samples of a window, in their order."""
        if self._held[0] != window:
            ranges = [np.arange(self._firsts[unit], self._firsts[unit + 1]) for unit in self._windows[window]]
            indices: np.ndarray = np.concatenate(ranges)
            if self._key is not None:
                indices = np.random.Generator(np.random.PCG64([*self._key, window])).permutation(indices)
            self._held = window, indices
        return self._held[1]
