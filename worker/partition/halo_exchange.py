"""Exchange between ranks from source windows to target windows: the only communication pattern of partitioned models.

Rank i has an array on window source_i and needs one on target_i. For i != j, rank i sends rank j the intersection of
source_i and target_j, if it is not empty, packed into one message. All windows are known to all ranks, so plan and
buffers are made once, without communication.

    messages    one for each ordered pair (i, j), i != j, with a non-empty intersection
    bytes       sum over i != j of |source_i & target_j| * itemsize
    copies      one into the message and one out of it; one for a rank's own cells

If no two sources overlap, values are copied bit for bit. Otherwise each cell is the sum over all sources that have it,
0 + first + second + … in rank order: the same bits in every run, and those of `numpy.add.at` in a loop over the ranks.
With sources and targets swapped an exchange is its own transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dbelief.partition import Window
from dbelief.partition.window import uncovered

from ..comm import Communicator, Message
from ..comm.communicator import Pending


class HaloExchange:
    """One rank's end of an exchange: maps the array on its source window to the one on its target window.

    Construction and calls are collective, and all ranks start exchanges in one order. Between `start` and `finish` a
    rank may compute; until `finish` returns it may read the target in the window `ready` only.

    Parameters
    ----------
    sources, targets
        Windows by rank. Cells of a target that are in no source are 0.

    Attributes
    ----------
    target
        Array on this rank's target window, written and returned by every call; the caller may change it.
    ready
        Window of the target that is complete once `start` returns; empty if sources overlap.
    """

    def __init__(self, comm: Communicator, sources: Sequence[Window], targets: Sequence[Window], dtype: Any) -> None:
        self._comm = comm
        self._dtype = np.dtype(dtype)
        self._source_window = source = sources[comm.rank]
        target = targets[comm.rank]
        self._adds = any((one & other).size for one, other in combinations(sources, 2))
        self._gaps = bool(uncovered(target, sources))
        own = source & target
        self.ready = Window(own.start, own.start) if self._adds else own
        self.target = comm.xp.zeros(target.shape, self._dtype)
        self._own = (own.within(target), own.within(source)) if own.size else None

        def packed(window: Window) -> Any:
            return comm.xp.empty(window.shape, self._dtype)

        peers = [rank for rank in range(comm.size) if rank != comm.rank]
        out = {peer: common for peer in peers if (common := source & targets[peer]).size}
        coming = {peer: common for peer in peers if (common := sources[peer] & target).size}
        self._out = [(common.within(source), packed(common)) for common in out.values()]
        self._coming = {peer: (common.within(target), packed(common)) for peer, common in coming.items()}
        self._messages = [Message(True, part, peer) for peer, (_, part) in zip(out, self._out, strict=True)]
        self._messages += [Message(False, part, peer) for peer, (_, part) in self._coming.items()]
        self._under_way: tuple[Pending, Any] | None = None

    def __call__(self, source: Any) -> Any:
        """Run a complete exchange; see `start` and `finish`."""
        self.start(source)
        return self.finish()

    def start(self, source: Any) -> None:
        """Pack and send; `source` must not change until `finish` returns.

        Raises
        ------
        ValueError
            `source` has not the shape or the dtype of this rank's source window, or the last exchange is not finished.
        RankFailure
            A rank has failed.
        """
        if (source.shape, source.dtype) != (self._source_window.shape, self._dtype):
            wanted = f"{self._dtype} on {self._source_window}, of shape {self._source_window.shape}"
            raise ValueError(f"rank {self._comm.rank} has {wanted}, not {source.dtype} of shape {source.shape}")
        if self._under_way is not None:
            raise ValueError("an exchange was started and not finished, and starts again")
        for index, part in self._out:
            part[...] = source[index]
        self._under_way = self._comm.start(self._messages), source
        if self._adds or self._gaps:
            self.target.fill(0)
        if self._own is not None and not self._adds:
            self.target[self._own[0]] = source[self._own[1]]

    def finish(self) -> Any:
        """Wait for the other ranks' messages, and return the array on this rank's target window.

        Raises
        ------
        ValueError
            No exchange was started.
        RankFailure, Unavailable
            A rank has failed, or did not answer within the deadline of the `Communicator`.
        """
        if self._under_way is None:
            raise ValueError("an exchange that was not started cannot be finished")
        pending, source = self._under_way
        pending.wait()
        self._under_way = None
        if self._adds:
            self._add(source)
        else:
            for index, part in self._coming.values():
                self.target[index] = part
        return self.target

    def _add(self, source: Any) -> None:
        for rank in range(self._comm.size):
            if rank in self._coming:
                index, part = self._coming[rank]
                self.target[index] += part
            elif rank == self._comm.rank and self._own is not None:
                self.target[self._own[0]] += source[self._own[1]]
