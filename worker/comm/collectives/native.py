"""Sum by the engine itself, where it has one: MPI's and, unverified on a GPU, NCCL's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..communicator import Communicator
from .allreduce import Allreduce, Gives


class NativeAllreduce(Allreduce):
    """Sum by the engine's library, in an order that it chooses; see `Allreduce`.

    Equal bits on all ranks then depend on the library: MPI only recommends it, MPICH and NCCL guarantee it.

    Raises
    ------
    ValueError
        The engine has no sum of its own: threads.
    """

    def __init__(self, comm: Communicator, shape: int | Sequence[int], dtype: Any, gives: Gives) -> None:
        super().__init__(comm, shape, dtype, gives)
        self._sum = getattr(comm.engine, "sum_in_any_order", None)
        if self._sum is None:
            raise ValueError(f"{type(comm.engine).__name__} has no sum of its own; take a tree or a ring")

    def _reduce(self, numbers: Any) -> None:
        assert self._sum is not None
        self._sum(numbers).wait(self._comm.deadline_s)
        self._divide(numbers)
