"""Collective operations of the ranks of one replica; rank 0 is the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dbelief.errors import Rejected


class RankGroup(Protocol):
    """Interface of one rank to the others; every call but `abort` is made by all ranks."""

    @property
    def rank(self) -> int:
        """This rank, from 0; rank 0 leads."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Broadcast the bytes of rank `root` to all."""
        ...

    def total(self, value: float) -> float:
        """Sum of one number over the ranks, in rank order."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called this."""
        ...

    def abort(self, error: BaseException) -> None:
        """Report that this rank failed: the others' waits end with its number and the error. Not collective."""
        ...


class SingleRank:
    """The only rank of a replica that is not partitioned."""

    rank = 0
    size = 1

    def share(self, data: bytes, root: int = 0) -> bytes:
        """See `RankGroup`."""
        return data

    def total(self, value: float) -> float:
        """See `RankGroup`."""
        return value

    def barrier(self) -> None:
        """See `RankGroup`."""

    def abort(self, error: BaseException) -> None:
        """See `RankGroup`."""


def all_or_none(ranks: RankGroup, act: Callable[[], object]) -> None:
    """Run an action that a peer may refuse on every rank; all ranks continue, or none does.

    Raises
    ------
    Rejected
        On all ranks, where it was refused on one; the message names the first one and its reason.
    """
    error: Rejected | None = None
    try:
        act()
    except Rejected as refused:
        error = refused
    if not ranks.total(error is not None):
        return
    if ranks.size == 1 and error is not None:
        raise error
    for rank in range(ranks.size):
        reason = ranks.share(str(error or "").encode(), rank)
        if reason:
            raise Rejected(f"rank {rank}: {reason.decode()}") from error


def all_max(ranks: RankGroup, value: int) -> int:
    """Maximum of an integer over all ranks; returns when every rank has called this."""
    return max(int(ranks.share(str(value).encode(), rank)) for rank in range(ranks.size))
