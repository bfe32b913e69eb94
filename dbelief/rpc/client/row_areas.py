"""Arrays where rows of tables and their keys lie while shards on this host read and write them.

A block costs each shard a call when it is first used: arrays are kept for further calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from dbelief.process.runtime import runtime

_LEAST = 1 << 14
"""Numbers of the smallest array: 64 KiB."""
MOST_HELD = 1 << 24
"""Numbers of the largest array, 64 MiB: it is kept, and more rows take their time anyway."""


class PushedRows(NamedTuple):
    """Packed rows of one push.

    Attributes
    ----------
    packed
        By segment.
    area
        (n,) float32 array that holds them all; None: each is anywhere.
    starts
        By segment, the first number of its rows in the area.
    """

    packed: Mapping[int, np.ndarray]
    area: np.ndarray | None = None
    starts: Mapping[int, int] = {}


NO_ROWS = PushedRows({})


class RowAreas:
    """Arrays of one client, each for one call at a time; for several threads.

    Parameters
    ----------
    array
        Allocates (n,) float32: in shared memory where it can.
    """

    def __init__(self, array: Callable[[int], np.ndarray]) -> None:
        self._array = array
        self._idle: list[np.ndarray] = []
        self._lock = runtime.lock()

    @contextmanager
    def taken(self, size: int) -> Iterator[np.ndarray]:
        """An array of at least so many numbers, until the context ends; after a failure it is not used again.

        A shard may then still access it.
        """
        area = self._take(size)
        yield area
        with self._lock:
            self._idle.append(area)

    def close(self) -> None:
        """Free the arrays."""
        with self._lock:
            self._idle.clear()

    @contextmanager
    def holding(self, packed: Mapping[int, np.ndarray]) -> Iterator[PushedRows]:
        """Copies of packed rows in one array, until the context ends."""
        starts, size = dict[int, int](), 0
        for index, rows in packed.items():
            starts[index] = size
            size = even(size + rows.size)
        with self.taken(size) as area:
            held = {index: area[first : first + packed[index].size] for index, first in starts.items()}
            for index, rows in packed.items():
                held[index][:] = rows
            yield PushedRows(held, area, starts)

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            fitting = [area for area in self._idle if area.size >= size]
            if fitting:
                found = min(fitting, key=len)
                self._idle = [area for area in self._idle if area is not found]
                return found
            self._idle.clear()  # too small for calls as they have become
        return self._array(max(_LEAST, 1 << (size - 1).bit_length()))


def even(size: int) -> int:
    """The next even number, or the same: a key has 64 bits, and begins at a multiple of them."""
    return size + size % 2
