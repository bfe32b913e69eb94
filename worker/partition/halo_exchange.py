"""From windows that ranks have to windows that ranks want: the one exchange there is.

Rank i has an array on window source_i and wants one on target_i. Every i sends j what source_i and target_j have in
common, for i != j and not nothing, packed into one message. All windows are known to all ranks, so the plan is made
once, without a word, and its buffers too.

    messages    one for each ordered pair (i, j), i != j, that have something in common
    bytes       sum over i != j of |source_i & target_j| * itemsize
    copies      one into the message and one out of it; one for what a rank has itself

Where no two sources meet, values are copied, bit for bit. Where some do, each cell is the sum of what all have there,
0 + first + second + … in rank order: the same bits in every run, and `numpy.add.at`'s in a loop over the ranks. With
sources and targets swapped an exchange is its own transpose.
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
    """One rank's part of an exchange; called with the array on its source, it gives the one on its target.

    All ranks make it, and then call it, together. Between `start` and `finish` a rank may compute; what it reads of the
    target by then is in the window `ready`.

    Parameters
    ----------
    sources, targets
        By rank. Cells of a target that no source has are 0.
    tag
        Different for exchanges that are under way together, unless all ranks start them in the same order.

    Attributes
    ----------
    target
        Array of this rank's target window, written by every call and given back by it; the caller may change it.
    ready
        What of the target is there once `start` returns; empty where sums are made.
    """

    def __init__(
        self, comm: Communicator, sources: Sequence[Window], targets: Sequence[Window], dtype: Any, tag: int = 0
    ) -> None:
        self._comm = comm
        self._dtype = np.dtype(dtype)
        self._source_window, self._target_window = source, target = sources[comm.rank], targets[comm.rank]
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
        self._messages = [Message(True, part, peer, tag) for peer, (_, part) in zip(out, self._out, strict=True)]
        self._messages += [Message(False, part, peer, tag) for peer, (_, part) in self._coming.items()]
        self._under_way: tuple[Pending, Any] | None = None

    def __call__(self, source: Any) -> Any:
        """Exchange at once; see `start` and `finish`."""
        self.start(source)
        return self.finish()

    def start(self, source: Any) -> None:
        """Pack and send; `source` must stay as it is until `finish` returns.

        Raises
        ------
        ValueError
            `source` has not the shape or the dtype of this rank's source window, or the last call is not finished.
        RankDied
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
        """Wait for what the others send, and give the array on this rank's target window.

        Raises
        ------
        RankDied, Unreachable
            A rank has failed, or did not answer within the deadline of the `Comm`.
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
