"""Interface of engines: start messages, and report how they ended.

An engine does two things: it starts a set of messages together, and it reports the failure of a rank. Messages start
together because NCCL needs all messages that depend on each other at once. Everything else (`Communicator`) is built on
this. The rules are MPI's: messages between two ranks with one tag arrive in the order they were started in, and an
array belongs to its message until the wait is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dbelief.errors import RankFailure, Unavailable


@dataclass(frozen=True)
class Message:
    """One array from this rank to a peer (`sends`), or from the peer into this rank's array.

    Attributes
    ----------
    array
        C-contiguous, of the engine's array module; both sides have the same size and dtype.
    peer
        The other rank.
    tag
        Distinguishes messages between the same two ranks; NCCL has no tags, and matches messages by their order.
    """

    sends: bool
    array: Any
    peer: int
    tag: int = 0

    def __str__(self) -> str:
        way = "rank {} to take {:,} bytes" if self.sends else "rank {} to send {:,} bytes"
        return f"{way.format(self.peer, self.array.nbytes)} (tag {self.tag})"


@dataclass(frozen=True)
class PeerFailure:
    """The first failure in a group: which rank, and the cause."""

    who: str
    cause: str

    @classmethod
    def of(cls, who: str, error: BaseException) -> PeerFailure:
        """The failure of `who` by `error`; an error without a message is named by its type."""
        return cls(who, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


class Handle:
    """Messages in flight.

    Attributes
    ----------
    wait
        `wait(deadline_s)` blocks until all messages are complete, at most `deadline_s` seconds from now. It raises
        RankFailure as soon as the failure of a rank of the group is known; Unavailable when the deadline has passed,
        with the names of peers, tags and sizes. Where the engine can cancel a message (threads), the arrays are not
        accessed any more then; otherwise they must not be used again.
    """

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[float], None]) -> None:
        self.wait = wait


class Engine(Protocol):
    """One rank's end of a group of ranks; used by one thread at a time."""

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        ...

    @property
    def xp(self) -> Any:
        """Module of the arrays that this engine transfers, numpy or cupy."""
        ...

    def start(self, messages: Sequence[Message]) -> Handle:
        """Start messages together; raises RankFailure if the group has failed before."""
        ...

    def check(self) -> None:
        """Raise RankFailure if a rank of the group has failed; for long computations."""
        ...

    def abort(self, error: BaseException) -> None:
        """Report this rank's failure: end every wait of the group, now and later. Only the first failure counts."""
        ...

    def close(self) -> None:
        """Release the engine's resources; the last call."""
        ...


def rank_failed(death: PeerFailure, rank: int, waiting: Iterable[Message] = ()) -> RankFailure:
    """Error of a rank whose group has failed."""
    return RankFailure(f"{death.who} died of {death.cause}{_waited(rank, waiting)}", death.cause.partition(":")[0])


def timed_out(deadline_s: float, rank: int, waiting: Iterable[Message]) -> Unavailable:
    """Error of a rank whose wait timed out."""
    return Unavailable(f"nothing came for {deadline_s:g} s{_waited(rank, waiting)}")


def _waited(rank: int, waiting: Iterable[Message]) -> str:
    named = ", ".join(map(str, waiting))
    return f"; rank {rank} waited for {named}" if named else f"; reported to rank {rank}"
