"""What the ranks declare of an array that no rank holds whole, and the traffic that follows: counted, not sent.

Rank i writes output_i and reads input_i. Bringing what is written to where it is read sends from i to j, i != j,

    bytes       |output_i & input_j| * itemsize
    messages    1 where that is not 0

and the way back, from what was read to what is written, the same with i and j exchanged (`docs/decisions/0008`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cut import OWNER
from .window import Window, split

Pairs = np.ndarray[Any, np.dtype[np.int64]]
"""(ranks, ranks) int64: something of each ordered pair, from the row's rank to the column's."""


@dataclass(frozen=True)
class Declared:
    """An array of which each rank writes one box and reads another.

    Attributes
    ----------
    shape
        Of the whole array.
    outputs, inputs
        By rank, the window that the rank writes, and the one it reads.
    first_axis
        Which axis of the array the windows begin with; all others go along whole.
    """

    shape: tuple[int, ...]
    outputs: tuple[Window, ...]
    inputs: tuple[Window, ...]
    first_axis: int = 0

    @classmethod
    def from_owner(cls, shape: Sequence[int], ranks: int) -> Declared:
        """What the owner of all that is shared has, and all ranks read."""
        whole, nothing = Window.whole(shape), Window.nothing(len(shape))
        return cls(tuple(shape), tuple(whole if r == OWNER else nothing for r in range(ranks)), (whole,) * ranks)

    @property
    def ways(self) -> tuple[Pairs, Pairs]:
        """Numbers that go from each rank to each other one: to where they are read, and back. Cost: ranks squared."""
        there = np.full((len(self.outputs), len(self.inputs)), self._each, np.int64)
        for axis in range(len(self.outputs[0].start)):
            there *= _overlaps(self.outputs, self.inputs, axis)
        np.fill_diagonal(there, 0)
        return there, there.T

    @property
    def _each(self) -> int:
        """Numbers of the array for each cell of a window."""
        last = self.first_axis + len(self.outputs[0].start)
        return math.prod(self.shape[: self.first_axis]) * math.prod(self.shape[last:])

    @property
    def held(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By rank, numbers of the box that it reads, and of the one that it writes."""
        return tuple(self._each * w.size for w in self.inputs), tuple(self._each * w.size for w in self.outputs)


def summed(count: int, ranks: int) -> tuple[Pairs, Pairs]:
    """Numbers that go from each rank to each other one where `count` of them are summed over all ranks.

    Each rank sums one piece: it gets that of all others, and gives them the sum. Source: `Comm.allreduce`.
    """
    pieces = np.array([stop - start for start, stop in split(count, ranks)], np.int64)
    to_sum = np.tile(pieces, (ranks, 1))
    np.fill_diagonal(to_sum, 0)
    return to_sum, to_sum.T


def _overlaps(sources: Sequence[Window], targets: Sequence[Window], axis: int) -> Pairs:
    """Along one axis, how many places each source has in common with each target."""
    a, b = (np.array([(w.start[axis], w.stop[axis]) for w in windows], np.int64).T for windows in (sources, targets))
    start, stop = np.maximum.outer(a[0], b[0]), np.minimum.outer(a[1], b[1])
    found: Pairs = np.maximum(stop - start, 0)
    return found
