"""Sum up a tree of ranks, and broadcast the result down the same tree.

A rank adds its children's sums to its own numbers, child after child, and sends the total to its parent. It forwards
its parent's result to its children, the last one first: with `binomial` that one has the most ranks below it.
Sum of a rank = ((own + first child's sum) + second child's sum) + …

In chunks, chunk i moves up while i + 1 is being summed further below, and results move down meanwhile: the links are
used in both directions at once. The order of a rank's messages is fixed. Its step s is chunk s up, then chunk s - lag
down, where lag = 2 depth is the number of chunks on their way to the root and back. In step s a rank depends on its
children's step s, or an earlier one, and on its parent's step s - 2. No cycle and no deadlock can arise, even if a send
ends only when it is received.

Over NCCL, which starts messages in the order of the calls, this holds only for complete vectors (no `chunk`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from typing import Any

from dbelief.core.reduction_tree import Shape

from ..communicator import Communicator, Pending
from .allreduce import Allreduce, cut, parts_of
from .wire_format import Wire, make_format


class TreeAllreduce(Allreduce):
    """Sum over a tree of ranks; see `Allreduce`, and `dbelief.core.reduction_tree` for trees.

    Memory beside the array: two chunks for each child (up to two vectors without `chunk`), in the wire format. With 16
    bits also a send buffer of the array's size, and scratch of a chunk.

    Parameters
    ----------
    tree
        Tree of as many ranks as `comm` has.
    wire
        "float16" or "bfloat16": float32 is rounded to that each time it is sent, and added in float32. With u = 2^-11
        or 2^-8 a number is off by at most ((1 + u)^(h + 1) (1 + 2^-24)^(P - 1) - 1) times the sum of the P magnitudes,
        h = height of the tree.
    chunk
        Maximum number of elements in a message; None: all are sent as one.
    """

    def __init__(
        self,
        comm: Communicator,
        shape: int | Sequence[int],
        dtype: Any,
        tree: Shape,
        *,
        wire: Wire | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(comm, shape, dtype)
        if tree.ranks != comm.size:
            raise ValueError(f"a tree of {tree.ranks} ranks for a group of {comm.size}")
        self._children, self._parent = tree.children[comm.rank], tree.parents[comm.rank]
        self._lag = 2 * tree.depth(comm.rank)
        self._chunks = cut(0, self._size, parts_of(self._size, chunk)) if self._size else []
        longest = max((one.stop - one.start for one in self._chunks), default=0)
        self._format = make_format(comm.xp, self._dtype, wire, longest)
        self._packed = comm.xp.empty(self._size, self._format.dtype) if wire else None
        # Chunks are in flight to and from all children at once, complete vectors go to one child after the other.
        pipelined, children = len(self._chunks) > 1, len(self._children)
        ahead = 2 * children if pipelined else min(children, 2)
        self._room = [comm.xp.empty(longest, self._format.dtype) for _ in range(ahead)]
        self._at_once = 2 * children if pipelined else 1
        self._rising: deque[Pending] = deque()
        self._expected: deque[Pending] = deque()
        self._given: deque[Pending] = deque()

    def _reduce(self, numbers: Any) -> None:
        sent = numbers if self._packed is None else self._packed
        parts = [(numbers[chunk], sent[chunk]) for chunk in self._chunks]
        arrivals = self._arrivals()
        for step in range(len(parts) + self._lag):
            if step < len(parts):
                self._up(*parts[step], arrivals)
            if self._parent is not None and 1 <= step <= len(parts):
                self._expect(parts[step - 1][1], self._parent)
            if step >= self._lag:
                self._down(*parts[step - self._lag])
        while self._given:
            self._given.popleft().wait()

    def _arrivals(self) -> Iterator[Any]:
        """Iterate over the children's messages in the order of addition; further ones arrive meanwhile."""
        rooms = cycle(self._room)
        coming: deque[tuple[Pending, Any]] = deque()
        for chunk, child in product(self._chunks, self._children):
            room = next(rooms)[: chunk.stop - chunk.start]
            coming.append((self._comm.irecv(room, child), room))
            if len(coming) == len(self._room):
                yield _pass_on(coming)
        while coming:
            yield _pass_on(coming)

    def _up(self, numbers: Any, sent: Any, arrivals: Iterator[Any]) -> None:
        """Add the children's sums of a chunk, and send the total to the parent."""
        for _ in self._children:
            self._format.add(next(arrivals), numbers)
        if self._parent is not None:
            self._format.pack(numbers, sent)
            self._rising.append(self._comm.isend(sent, self._parent))

    def _expect(self, sent: Any, parent: int) -> None:
        """Post the receive of a result into its summand's buffer, once that has been sent."""
        self._rising.popleft().wait()
        self._expected.append(self._comm.irecv(sent, parent))

    def _down(self, numbers: Any, sent: Any) -> None:
        """Wait for the result of a chunk, and forward it to the children."""
        if self._parent is not None:
            self._expected.popleft().wait()
        else:
            self._format.pack(numbers, sent)
        for child in reversed(self._children):
            if len(self._given) == self._at_once:
                self._given.popleft().wait()
            self._given.append(self._comm.isend(sent, child))
        self._format.unpack(sent, numbers)


def _pass_on(coming: deque[tuple[Pending, Any]]) -> Any:
    pending, room = coming.popleft()
    pending.wait()
    return room
