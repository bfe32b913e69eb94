"""Communication interface of a rank's algorithms: messages, a barrier and an ordered sum, each wait with a deadline.

Independent of the engine. With P ranks and n bytes:

    barrier      ceil(log2 P) messages of 1 byte from each rank (dissemination)
    allreduce    each rank sums one piece of the array in rank order, and sends it to all:
                 2 n (P - 1) / P bytes and at most 2 (P - 1) messages from each rank, as a ring, and the same bits as
                 one loop over the ranks
"""

from __future__ import annotations

from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from .engine import Engine, Handle, Message

HIGHEST_TAG = 32_000
"""MPI guarantees tags up to 32,767; those above this one are used internally."""
_BARRIER, _SUM, _SHARED = range(HIGHEST_TAG + 1, HIGHEST_TAG + 4)


class Pending:
    """Messages in flight, with their deadline."""

    def __init__(self, handle: Handle, deadline_s: float) -> None:
        self._handle = handle
        self._deadline_s = deadline_s

    def wait(self, deadline_s: float | None = None) -> None:
        """Block until all are complete; see `Handle.wait`. The default is the deadline of the `Communicator`."""
        self._handle.wait(self._deadline_s if deadline_s is None else deadline_s)


class Communicator:
    """One rank's connection to the others of its group.

    As a context manager it closes the engine. If the body raises, all other ranks end with the cause.

    Parameters
    ----------
    deadline_s
        Timeout of every wait, unless the call specifies another.

    Attributes
    ----------
    rank, size
        This rank, from 0, and the number of ranks.
    xp
        Module of the arrays that can be sent, numpy or cupy.
    """

    def __init__(self, engine: Engine, deadline_s: float = 60.0) -> None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s is {deadline_s}, must be positive")
        self.engine = engine
        self.rank, self.size, self.xp = engine.rank, engine.size, engine.xp
        self.deadline_s = deadline_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.abort(error)
        self.close()

    def start(self, messages: list[Message]) -> Pending:
        """Start messages together; NCCL requires it for all that depend on each other.

        Raises
        ------
        ValueError
            A peer is this rank itself or not in the group, a tag is not within 0..HIGHEST_TAG, or an array is not
            C-contiguous.
        RankFailure
            The group has failed before.
        """
        for message in messages:
            if not 0 <= message.peer < self.size or message.peer == self.rank:
                raise ValueError(f"rank {self.rank} has no peer {message.peer} among {self.size} ranks")
            if not 0 <= message.tag <= HIGHEST_TAG:
                raise ValueError(f"tag is {message.tag}, must be within 0..{HIGHEST_TAG}")
            if not message.array.flags.c_contiguous:
                raise ValueError(f"an array of shape {message.array.shape} to be sent as it is must be C-contiguous")
        return self._start(messages)

    def _start(self, messages: list[Message]) -> Pending:
        return Pending(self.engine.start(messages), self.deadline_s)

    def isend(self, array: Any, to: int, tag: int = 0) -> Pending:
        """Start sending `array`, which must not change until the wait is over."""
        return self.start([Message(True, array, to, tag)])

    def irecv(self, array: Any, source: int, tag: int = 0) -> Pending:
        """Start receiving into `array`, which must not be read until the wait is over."""
        return self.start([Message(False, array, source, tag)])

    def send(self, array: Any, to: int, tag: int = 0) -> None:
        """Send `array`; may block until it is received, so two ranks that both send first wait for each other."""
        self.isend(array, to, tag).wait()

    def recv(self, array: Any, source: int, tag: int = 0) -> None:
        """Receive into `array`."""
        self.irecv(array, source, tag).wait()

    def barrier(self) -> None:
        """Return when every rank has called this."""
        token, taken = self.xp.zeros(1, "uint8"), self.xp.zeros(1, "uint8")
        step = 1
        while step < self.size:
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            self._start([Message(True, token, to, _BARRIER), Message(False, taken, source, _BARRIER)]).wait()
            step *= 2

    def allreduce(self, array: Any) -> None:
        """Replace `array`, C-contiguous and of one shape on all ranks, by its sum over the ranks, added in rank order.

        The same bits on every rank and in every run: ((a_0 + a_1) + a_2) + … For a vector that is summed repeatedly,
        the classes of `collectives` are better: they keep their buffers, and need not keep this order.
        """
        if not array.flags.c_contiguous:
            raise ValueError(f"an array of shape {array.shape} to be summed in place must be C-contiguous")
        flat = array.reshape(-1)
        pieces = [flat[a:b] for a, b in pairwise(rank * flat.size // self.size for rank in range(self.size + 1))]
        mine, peers = pieces[self.rank], [rank for rank in range(self.size) if rank != self.rank]
        parts = self.xp.empty((self.size, mine.size), flat.dtype)
        parts[self.rank] = mine
        self._exchange({peer: pieces[peer] for peer in peers}, {peer: parts[peer] for peer in peers})
        mine[...] = parts[0]
        for part in parts[1:]:
            mine += part
        self._exchange(dict.fromkeys(peers, mine), {peer: pieces[peer] for peer in peers})

    def total(self, value: float) -> float:
        """Sum of one number over the ranks, in rank order: the same bits on every rank. Without others: no array."""
        if self.size == 1:
            return float(value)
        one = self.xp.full(1, value, "float64")
        self.allreduce(one)
        return float(one[0])

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Broadcast the bytes of rank `root`; the `data` of the other ranks is ignored.

        Cost: two messages from the root to each other rank, one after the other: for short messages, not for arrays.
        """
        if self.size == 1:
            return data
        peers = [rank for rank in range(self.size) if rank != root] if self.rank == root else [root]
        length = self.xp.array([len(data)], "int64")
        self._share(length, peers, root)
        text = self.xp.frombuffer(data, "uint8").copy() if self.rank == root else self.xp.empty(int(length[0]), "uint8")
        if text.size:
            self._share(text, peers, root)
        return bytes(text.tobytes())

    def _share(self, array: Any, peers: list[int], root: int) -> None:
        self._start([Message(self.rank == root, array, peer, _SHARED) for peer in peers]).wait()

    def _exchange(self, out: dict[int, Any], into: dict[int, Any]) -> None:
        """Send and receive the arrays that are not empty."""
        sends = [Message(True, array, peer, _SUM) for peer, array in out.items() if array.size]
        self._start(sends + [Message(False, array, peer, _SUM) for peer, array in into.items() if array.size]).wait()

    def abort(self, error: BaseException) -> None:
        """Report this rank's failure: all others' waits end at once with its name and the error."""
        self.engine.abort(error)

    def close(self) -> None:
        """Release the engine's resources; the last call."""
        self.engine.close()
