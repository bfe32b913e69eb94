"""Common interface and guarantees of all ways of summing a vector over the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ..communicator import Communicator


class Allreduce(ABC):
    """Replaces an array by its sum over all ranks, in place; construction and calls are collective.

    Buffers are kept from call to call. All ranks end with the same bits, in every run with the same number of ranks.

    Parameters
    ----------
    shape, dtype
        Of every array it is called with, the same on all ranks.
    """

    def __init__(self, comm: Communicator, shape: int | Sequence[int], dtype: Any) -> None:
        self._comm = comm
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._dtype = np.dtype(dtype)
        self._size = prod(self._shape)

    def __call__(self, array: Any) -> None:
        """Replace `array`, C-contiguous, by its sum over the ranks.

        Raises
        ------
        ValueError
            The array has another shape or dtype than declared, or is not contiguous.
        RankFailure, Unavailable
            A rank has failed, or did not answer within the deadline of the `Communicator`; the array's content is then
            undefined.
        """
        if (array.shape, array.dtype) != (self._shape, self._dtype) or not array.flags.c_contiguous:
            wanted = f"a C-contiguous {self._dtype} array of shape {self._shape}"
            raise ValueError(f"rank {self._comm.rank} sums {wanted}, not {array.dtype} of shape {array.shape}")
        if self._comm.size > 1:
            self._reduce(array.reshape(-1))

    @abstractmethod
    def _reduce(self, numbers: Any) -> None:
        """Replace `numbers`, of shape (size,); there are two ranks or more."""


def cut(begin: int, end: int, parts: int) -> list[slice]:
    """Cut a range into `parts` slices whose lengths differ by at most one."""
    size = end - begin
    return [slice(a, b) for a, b in pairwise(begin + part * size // parts for part in range(parts + 1))]


def parts_of(size: int, chunk: int | None) -> int:
    """Number of parts of at most `chunk` elements in `size` elements; 1 if `chunk` is None.

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
