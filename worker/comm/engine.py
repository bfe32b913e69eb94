"""What an engine does: start messages, and tell how they ended.

An engine knows two things only, to start a set of messages together and to hear of a death. Together, because NCCL
must be told at once of all messages that depend on each other; everything else (`Comm`) is made of that.
The rules are MPI's: messages between two ranks with one tag arrive in the order they were started in, and an array
belongs to its message until the wait is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        Tells messages between the same two ranks apart; NCCL, which has none, tells them by their order.
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
    """Who failed first in a group, and of what."""

    who: str
    cause: str

    @classmethod
    def of(cls, who: str, error: BaseException) -> PeerFailure:
        """The death of `who` by `error`; a cause without words has its type's name."""
        return cls(who, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


class Handle(Protocol):
    """Messages under way."""

    def wait(self, deadline_s: float) -> None:
        """Block until all of them are through; at most `deadline_s` seconds from now.

        Raises
        ------
        RankFailure
            As soon as it is known that a rank of the group failed.
        Unreachable
            The time is over; names peers, tags and sizes. The arrays are not touched any more where the engine can
            take a message back (threads), else they must not be used again.
        """
        ...


class Engine(Protocol):
    """One rank's end of a group of ranks; used by one thread at a time."""

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        ...

    @property
    def xp(self) -> Any:
        """Module of the arrays that this engine carries, numpy or cupy."""
        ...

    def start(self, messages: Sequence[Message]) -> Handle:
        """Start messages together; raises RankFailure where the group has failed before."""
        ...

    def check(self) -> None:
        """Raise RankFailure where a rank of the group has failed; for those who compute for long."""
        ...

    def abort(self, error: BaseException) -> None:
        """This rank failed: end every wait of the group, now and in future. Only the first death counts."""
        ...

    def close(self) -> None:
        """Give back what the engine holds; the last call."""
        ...


def rank_failed(death: PeerFailure, rank: int, waiting: Iterable[Message] = ()) -> RankFailure:
    """The error of a rank whose group has failed."""
    return RankFailure(f"{death.who} died of {death.cause}{_waited(rank, waiting)}", death.cause.partition(":")[0])


def timed_out(deadline_s: float, rank: int, waiting: Iterable[Message]) -> Unavailable:
    """The error of a rank that waited in vain."""
    return Unavailable(f"nothing came for {deadline_s:g} s{_waited(rank, waiting)}")


def _waited(rank: int, waiting: Iterable[Message]) -> str:
    named = ", ".join(map(str, waiting))
    return f"; rank {rank} waited for {named}" if named else f"; told to rank {rank}"
