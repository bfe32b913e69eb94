"""Copy on write: a segment as it was when a snapshot set was begun, however much is pushed before it is written.

A mark names the segment's own arrays, with the numbers and the ledger that belong to them. Whoever is about to change
one of these arrays leaves a copy first (`leave`), once; what nobody has changed until its turn is copied by the one who
writes the set, into his buffer (`take`). Arrays are told apart by what they are, not by the names that they go by: a
rotation changes none.

Cost: of a segment without a mark, a comparison for each change. While a set is written, a copy of each array that is
changed before its turn, which lives until it is written: at worst one more copy of the shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from dbelief.checkpoint.shard_file import StoredSegment


class SnapshotView:
    """One segment as it is to stand in a set; every method expects the segment's lock to be held.

    Parameters
    ----------
    stored
        What the set is to hold; its arrays are the segment's own.

    Attributes
    ----------
    lacking
        Whether there was no memory for a copy, so that the set cannot be as it was to be.
    """

    def __init__(self, stored: StoredSegment) -> None:
        self.stored = stored
        self.failed = False
        self._arrays = dict(stored.arrays)
        self._own = {id(array): name for name, array in stored.arrays.items()}  # none goes: `stored` holds them

    def preserve(self, changing: Iterable[np.ndarray]) -> None:
        """Keep a copy of these of the segment's arrays, which are about to be changed."""
        for array in changing:
            name = self._own.pop(id(array), None)
            if name is None:
                continue
            try:
                self._arrays[name] = array.copy()
            except MemoryError:  # the set may fail of it, a push may not
                self.failed = True

    def materialize(self, buffer: np.ndarray) -> StoredSegment:
        """All that the set is to hold; the arrays that nobody has changed are copied into `buffer`.

        Parameters
        ----------
        buffer
            1-D uint8, at least as long as all arrays together.
        """
        at = 0
        for name in self._own.values():
            values = self._arrays[name]
            copy = buffer[at : at + values.nbytes].view(values.dtype)
            copy[:] = values
            self._arrays[name] = copy
            at += values.nbytes
        self._own.clear()
        return replace(self.stored, arrays=self._arrays)
