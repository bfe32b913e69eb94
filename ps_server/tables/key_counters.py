"""Counts of pushes with keys that have no row yet: a key gets one after some of them, so that rare keys take no memory.

Bytes are fixed. Once half of the counters are in use, all are halved, and keys that are rare drop out. All of it
follows from the pushes in their order, so that a follower, or a bucket in another shard, counts the same.
"""

from __future__ import annotations

import numpy as np

from dbelief.arrays.key_counters import count_keys


class KeyCounters:
    """Counters of one bucket.

    Parameters
    ----------
    after
        Pushes with a key until it gets a row.
    size
        Bytes: a power of two.

    Attributes
    ----------
    held
        (size,) uint8, changed in place.
    """

    def __init__(self, after: int, size: int) -> None:
        self._after = after
        self.held = np.zeros(size, np.uint8)
        self._used = 0

    def reached(self, hashed: np.ndarray) -> np.ndarray:
        """(n,) bool: which of the keys with these (n,) uint64 hashes, each once, get a row at this push."""
        found = np.empty(hashed.size, np.uint8)
        self._used += count_keys(hashed, self._after, self.held, found)
        if 2 * self._used > self.held.size:
            self.held >>= 1
            self._used = int(np.count_nonzero(self.held))
        return found.view(np.bool_)

    def load(self, held: np.ndarray) -> None:
        """Count on from these counters; of another number of them all are 0."""
        self.held[:] = held if held.size == self.held.size else 0
        self._used = int(np.count_nonzero(self.held))
