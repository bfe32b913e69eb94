"""The ranks of one replica as those see them who only do things together: the first one speaks for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dbelief.errors import Rejected


class RankGroup(Protocol):
    """What one rank has of the others; every call is made by all ranks."""

    @property
    def rank(self) -> int:
        """This rank, from 0; rank 0 leads."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Give the bytes of rank `root` to all."""
        ...

    def total(self, value: float) -> float:
        """Sum of one number over the ranks, in rank order."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called this."""
        ...

    def abort(self, error: BaseException) -> None:
        """This rank failed: the waits of all others end with its name and the error. Made by one rank alone."""
        ...


class SingleRank:
    """The only rank of a replica that is not cut."""

    rank = 0
    size = 1

    def share(self, data: bytes, root: int = 0) -> bytes:
        """See `Ranks`."""
        return data

    def total(self, value: float) -> float:
        """See `Ranks`."""
        return value

    def barrier(self) -> None:
        """See `Ranks`."""

    def abort(self, error: BaseException) -> None:
        """See `Ranks`."""


def all_or_none(ranks: RankGroup, act: Callable[[], object]) -> None:
    """Do on every rank what a peer may refuse; all ranks go on, or none does.

    Raises
    ------
    Refused
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
    """The largest of all ranks' whole numbers; returns when every rank has called this."""
    return max(int(ranks.share(str(value).encode(), rank)) for rank in range(ranks.size))
