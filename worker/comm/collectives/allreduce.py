"""What all ways of summing a vector over the ranks have in common: what they are given, and what they promise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np

from ..communicator import Communicator

Gives = Literal["sum", "mean"]


class Allreduce(ABC):
    """Replaces an array by its sum, or mean, over all ranks, in place; all ranks make one, and then call it, together.

    Buffers are kept from call to call. All ranks end with the same bits, and every run of as many ranks does.

    Parameters
    ----------
    shape, dtype
        Of every array it is called with, the same on all ranks.
    gives
        "sum", or "mean": the sum divided by the number of ranks. A learning rate that was found for a mean over the
        batch is too large by that number for a sum of means.

    Raises
    ------
    ValueError
        `gives` is neither, or asks for a mean of what cannot hold one.
    """

    def __init__(self, comm: Communicator, shape: int | Sequence[int], dtype: Any, gives: Gives) -> None:
        self._comm = comm
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._dtype = np.dtype(dtype)
        self._size = prod(self._shape)
        self._gives = gives
        if gives not in ("sum", "mean"):
            raise ValueError(f"gives is {gives!r}, must be sum or mean")
        if gives == "mean" and not np.issubdtype(self._dtype, np.inexact):
            raise ValueError(f"a mean of {self._dtype} is no {self._dtype}")

    def __call__(self, array: Any) -> None:
        """Replace `array`, C-contiguous, by its sum or mean over the ranks.

        Raises
        ------
        ValueError
            The array has another shape or dtype than was said, or is not contiguous.
        RankDied, Unreachable
            A rank has failed, or did not answer within the deadline of the `Comm`; the array is of no use then.
        """
        if (array.shape, array.dtype) != (self._shape, self._dtype) or not array.flags.c_contiguous:
            wanted = f"a C-contiguous {self._dtype} array of shape {self._shape}"
            raise ValueError(f"rank {self._comm.rank} sums {wanted}, not {array.dtype} of shape {array.shape}")
        if self._comm.size > 1:
            self._reduce(array.reshape(-1))

    @abstractmethod
    def _reduce(self, numbers: Any) -> None:
        """Replace `numbers`, of shape (size,); there are two ranks or more."""

    def _divide(self, numbers: Any) -> None:
        """Make the mean of a sum, if that is what is wanted."""
        if self._gives == "mean":
            numbers /= self._comm.size


def cut(begin: int, end: int, parts: int) -> list[slice]:
    """Cut a range into so many parts that differ by one at the most."""
    size = end - begin
    return [slice(a, b) for a, b in pairwise(begin + part * size // parts for part in range(parts + 1))]


def parts_of(size: int, chunk: int | None) -> int:
    """How many parts of at most `chunk` numbers `size` of them make; one where no chunk is said.

    Raises
    ------
    ValueError
        `chunk` is less than 1.
    """
    if chunk is None:
        return 1
    if chunk < 1:
        raise ValueError(f"chunks of {chunk} numbers: there must be one or more in each")
    return max(-(-size // chunk), 1)
