"""Dropout (Hinton et al. 2012): in training each number is set to 0 with probability `share`, evaluation keeps all.

    y = x d / (1 - share), d = 0 or 1;  dL/dx = dy d / (1 - share)

so that the mean of y is x, and evaluation is y = x.

Which numbers are dropped is a function of the job's seed, the layer's place and the bits of the batch's inputs: no
generator moves on. So loss and gradient stay functions of parameters and batch. A batch that is computed twice has the
same gradient: by a replay, by another replica after a death or as a backup, at the next point of a line search. Epochs
compose their mini-batches anew, and so draw other masks; a method that takes the same portions again and again
(Sandblaster on all samples) drops the same numbers of them each time. All is done in integers, which are the same on
any machine and device; sums of floats would not be. A rank that has a part of the layer drops what one rank would.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dbelief.nn.bag_rows import BagRows
from dbelief.nn.model import Array
from dbelief.nn.sparse_rows import SparseRows
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Elementwise

UINT32 = np.dtype(np.uint32)

ODD = np.uint32(0x9E3779B9)
"""2^32 over the golden ratio: as a factor it moves neighbouring counters far apart."""


@dataclass(frozen=True)
class Dropout(Elementwise):
    """Sets a share of its inputs to 0 in training, where the workspace has a key."""

    share: float
    kind: ClassVar[str] = "dropout"

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share is {self.share}, must be from 0 to below 1")

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y; leave d."""
        xp, keep = work.xp, self._keep(work, x)
        if work.key is None:
            xp.copyto(y, x)
            return
        numbers = work.array("numbers", x.shape, UINT32)
        xp.copyto(numbers, work.places(x.shape), casting="unsafe")
        xp.multiply(numbers, ODD, out=numbers)
        xp.bitwise_xor(numbers, work.key, out=numbers)
        _scramble(xp, numbers, work.array("part", x.shape, UINT32))
        xp.greater_equal(numbers, np.uint32(self.share * 2**32), out=keep)
        self._times(xp, x, keep, y)

    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Write dL/dx by the d that `forward` left."""
        self._times(work.xp, dy, self._keep(work, x), dx)

    def _keep(self, work: Workspace, x: Array) -> Array:
        return work.array("keep", x.shape, np.dtype(bool))

    def _times(self, xp: Any, x: Array, keep: Array, out: Array) -> None:
        xp.multiply(x, keep, out=out)
        xp.multiply(out, 1 / (1 - self.share), out=out)


def batch_key(work: Workspace, inputs: Array, seed: int, place: int) -> Array:
    """Make the key of one layer's mask for one batch, uint32 of shape (1,): a hash of all bits of the inputs.

    Parameters
    ----------
    work : Workspace
        Of the layer: the key is one of its buffers.
    inputs : floating point, shape (m, features...), or SparseRows, or BagRows
        Of the whole network. Of sparse rows it is a hash of what is stored, not that of the same rows in an array.
    seed : int
        Of the job.
    place : int
        Of the layer in the network.
    """
    xp = work.xp
    given = inputs.bits if isinstance(inputs, SparseRows | BagRows) else inputs
    bits = xp.ascontiguousarray(given).reshape(len(given), -1).view(UINT32)
    numbers, part = (work.array(name, bits.shape, UINT32) for name in ("bits", "part of bits"))
    xp.copyto(numbers, work.rows(bits.size).reshape(bits.shape), casting="unsafe")
    xp.multiply(numbers, ODD, out=numbers)
    xp.bitwise_xor(numbers, bits, out=numbers)
    _scramble(xp, numbers, part)
    key, part = (work.array(name, (1,), UINT32) for name in ("key", "part of key"))
    xp.sum(numbers.reshape(1, -1), axis=1, dtype=UINT32, out=key)
    for number in (seed, seed >> 32, place):
        xp.bitwise_xor(key, np.uint32(number & 0xFFFFFFFF), out=key)
        _scramble(xp, key, part)
    return key


def _scramble(xp: Any, numbers: Array, part: Array) -> None:
    """Change each uint32 into another in place, all bits depending on all: the last steps of MurmurHash3 (Appleby)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        xp.right_shift(numbers, np.uint32(shift), out=part)
        xp.bitwise_xor(numbers, part, out=numbers)
        xp.multiply(numbers, np.uint32(factor), out=numbers)
