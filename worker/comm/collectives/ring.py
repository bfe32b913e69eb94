"""Sum around a ring: reduce-scatter, then allgather.

The vector is cut into P pieces. Every rank sends to the next rank and receives from the one before: P - 1 times a piece
to which it adds its own, and P - 1 times a complete sum. Piece p is added in the order p, p + 1, … around the ring.
All links are busy all the time, with 2 (P - 1) / P of the vector each, for any number of ranks.
Source: Patarasu & Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import product
from typing import Any

from ..communicator import Communicator, Pending
from ..engine import Message
from .allreduce import Allreduce, cut, parts_of
from .wire_format import Wire, make_format


class RingAllreduce(Allreduce):
    """Sum around the ring of all ranks; see `Allreduce`.

    Memory beside the array: two chunks (one piece without `chunk`), in the wire format. With 16 bits also a send buffer
    of the array's size, and scratch of a chunk.

    Parameters
    ----------
    wire
        As for `TreeAllreduce`, h = P - 1.
    chunk
        Maximum number of elements in a message: one is transferred while the next is added. None: a piece is one
        message.
    """

    def __init__(
        self,
        comm: Communicator,
        shape: int | Sequence[int],
        dtype: Any,
        *,
        wire: Wire | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(comm, shape, dtype)
        self._next, self._before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        pieces = cut(0, self._size, comm.size)
        parts = parts_of(-(-self._size // comm.size), chunk)
        self._chunks = [cut(piece.start, piece.stop, parts) for piece in pieces]
        self._at_once = min(parts, 2)
        longest = max(one.stop - one.start for chunks in self._chunks for one in chunks)
        self._format = make_format(comm.xp, self._dtype, wire, longest)
        self._packed = comm.xp.empty(self._size, self._format.dtype) if wire else None
        self._room = [comm.xp.empty(longest, self._format.dtype) for _ in range(self._at_once)]

    def _reduce(self, numbers: Any) -> None:
        sent = numbers if self._packed is None else self._packed
        turns = list(product(range(2 * (self._comm.size - 1)), range(len(self._chunks[0]))))
        for _, chunk in turns[: len(self._chunks[0])]:
            own = self._chunks[self._comm.rank][chunk]
            self._format.pack(numbers[own], sent[own])
        under_way: deque[Pending] = deque()
        for turn in range(len(turns) + self._at_once):
            if turn >= self._at_once:
                under_way.popleft().wait()
                self._take(*turns[turn - self._at_once], numbers, sent)
            if turn < len(turns):
                under_way.append(self._comm.start(self._messages(*turns[turn], sent)))

    def _messages(self, step: int, chunk: int, sent: Any) -> list[Message]:
        """Send and receive of one iteration, to be started together."""
        leaving = self._chunks[(self._comm.rank - step) % self._comm.size][chunk]
        out, into = sent[leaving], self._room_for(step, chunk, sent)
        both = Message(True, out, self._next), Message(False, into, self._before)
        return [message for message in both if message.array.size]

    def _take(self, step: int, chunk: int, numbers: Any, sent: Any) -> None:
        """Add a received summand and prepare it for sending; or store it, if it is a complete sum."""
        where = self._coming(step, chunk)
        if step < self._comm.size - 1:
            self._format.add(self._room_for(step, chunk, sent), numbers[where])
            self._format.pack(numbers[where], sent[where])
        if step >= self._comm.size - 2:
            self._format.unpack(sent[where], numbers[where])

    def _room_for(self, step: int, chunk: int, sent: Any) -> Any:
        """Buffer that a summand or a complete sum is received into."""
        where = self._coming(step, chunk)
        if step >= self._comm.size - 1:
            return sent[where]
        turn = step * len(self._chunks[0]) + chunk
        return self._room[turn % self._at_once][: where.stop - where.start]

    def _coming(self, step: int, chunk: int) -> slice:
        return self._chunks[(self._comm.rank - step - 1) % self._comm.size][chunk]
