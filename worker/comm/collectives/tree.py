"""Sums up a tree of ranks, and sends the result down the same tree.

A rank adds to its own numbers what its children send, child after child, sends that to its parent, and hands what its
parent sends back on to its children, the last one first: with `binomial` that one has the most ranks below it.
Sum of a rank = ((own + first child's sum) + second child's sum) + …

In chunks, chunk i moves up while i + 1 is being summed further below, and down meanwhile: the links carry both ways at
once. No rank asks which of its messages came first; its step s is chunk s up, then chunk s - lag down, where
lag = 2 depth is how many chunks are on their way to the root and back. What a rank waits for in step s its children do
in their step s, or have done, and its parent in step s - 2: no circle can close, even if a send ends only when it is
received.

Over NCCL, which starts messages in the order they are asked for, only whole vectors (no `chunk`) keep that promise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from typing import Any

from dbelief.core.reduction_tree import Shape

from ..communicator import Communicator, Pending
from .allreduce import Allreduce, Gives, cut, parts_of
from .wire_format import Wire, make_format


class TreeAllreduce(Allreduce):
    """Sum over a tree of ranks; see `Allreduce`, and `shapes` for trees.

    Memory beside the array: two chunks for each child (up to two vectors without `chunk`), as sent; with 16 bits also
    what is sent, and scratch of a chunk.

    Parameters
    ----------
    tree
        Of as many ranks as `comm` has.
    wire
        "float16" or "bfloat16": float32 is rounded to that each time it is sent, and added in float32. With u = 2^-11
        or 2^-8 a number is off by at most ((1 + u)^(h + 1) (1 + 2^-24)^(P - 1) - 1) times the sum of the P magnitudes,
        h = height of the tree.
    chunk
        The most numbers in a message; else all are sent as one.
    tag
        See `Message`.
    """

    def __init__(
        self,
        comm: Communicator,
        shape: int | Sequence[int],
        dtype: Any,
        gives: Gives,
        tree: Shape,
        *,
        wire: Wire | None = None,
        chunk: int | None = None,
        tag: int = 0,
    ) -> None:
        super().__init__(comm, shape, dtype, gives)
        if tree.ranks != comm.size:
            raise ValueError(f"a tree of {tree.ranks} ranks for a group of {comm.size}")
        self._tag = tag
        self._children, self._parent = tree.children[comm.rank], tree.parents[comm.rank]
        self._lag = 2 * tree.depth(comm.rank)
        self._chunks = cut(0, self._size, parts_of(self._size, chunk)) if self._size else []
        longest = max((one.stop - one.start for one in self._chunks), default=0)
        self._format = make_format(comm.xp, self._dtype, wire, longest)
        self._packed = comm.xp.empty(self._size, self._format.dtype) if wire else None
        # Chunks are under way to and from all children at once, whole vectors go to one child after the other.
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
        """What the children send, in the order it is added in; more comes while it is being added."""
        rooms = cycle(self._room)
        coming: deque[tuple[Pending, Any]] = deque()
        for chunk, child in product(self._chunks, self._children):
            room = next(rooms)[: chunk.stop - chunk.start]
            coming.append((self._comm.irecv(room, child, self._tag), room))
            if len(coming) == len(self._room):
                yield _pass_on(coming)
        while coming:
            yield _pass_on(coming)

    def _up(self, numbers: Any, sent: Any, arrivals: Iterator[Any]) -> None:
        """Add what the children have of a chunk, and send it to the parent."""
        for _ in self._children:
            self._format.add(next(arrivals), numbers)
        if self._parent is not None:
            self._format.pack(numbers, sent)
            self._rising.append(self._comm.isend(sent, self._parent, self._tag))

    def _expect(self, sent: Any, parent: int) -> None:
        """Make room for a result where its summand was, once that has gone."""
        self._rising.popleft().wait()
        self._expected.append(self._comm.irecv(sent, parent, self._tag))

    def _down(self, numbers: Any, sent: Any) -> None:
        """Have the result of a chunk, and hand it on."""
        if self._parent is not None:
            self._expected.popleft().wait()
        else:
            self._divide(numbers)
            self._format.pack(numbers, sent)
        for child in reversed(self._children):
            if len(self._given) == self._at_once:
                self._given.popleft().wait()
            self._given.append(self._comm.isend(sent, child, self._tag))
        self._format.unpack(sent, numbers)


def _pass_on(coming: deque[tuple[Pending, Any]]) -> Any:
    pending, room = coming.popleft()
    pending.wait()
    return room
