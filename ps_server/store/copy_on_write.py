"""Copy on write: a segment as it was when a snapshot set began, whatever is pushed before the segment is written.

A snapshot view refers to the segment's own arrays, with the version numbers and the ledger that belong to them. Every
write to one of these arrays first copies it, once (`SnapshotView.preserve`). Arrays that are unchanged when their
segment is written are copied into the writer's buffer (`SnapshotView.materialize`). Arrays are identified by object,
not by name: a rotation changes no array.

Cost: for a segment without a view, one comparison per write. While a set is written, a copy of each array that is
changed before its segment is written, kept until then: at worst one more copy of the shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from dbelief.checkpoint.shard_file import StoredSegment


class SnapshotView:
    """One segment as the set is to hold it; every method expects the segment's lock to be held.

    Parameters
    ----------
    stored
        What the set is to hold; its arrays are the segment's own, or `copied` already.

    Attributes
    ----------
    failed
        Whether memory for a copy was missing, so that the set cannot be written as of its beginning.
    """

    def __init__(self, stored: StoredSegment, copied: bool = False) -> None:
        self.stored = stored
        self.failed = False
        self._arrays = dict(stored.arrays)
        own = {} if copied else stored.arrays
        self._own = {id(array): name for name, array in own.items()}  # unique: `stored` holds all

    def preserve(self, changing: Iterable[np.ndarray]) -> None:
        """Copy those of the view's arrays that are about to be changed."""
        for array in changing:
            name = self._own.pop(id(array), None)
            if name is None:
                continue
            try:
                self._arrays[name] = array.copy()
            except MemoryError:  # this may fail the set, but not a push
                self.failed = True

    def materialize(self, buffer: np.ndarray) -> StoredSegment:
        """Contents of the set for this segment; unchanged arrays are copied into `buffer`.

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
