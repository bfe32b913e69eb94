"""Memory of clients on this host that a shard has mapped: segments are read from it and written into it in place.

What is mapped for a connection only that connection may name. A handler that is at work on a block keeps it mapped
until it is done, whether or not its client is still there: `dbelief.arrays.shared_memory` says why that harms nobody.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from dbelief.arrays.shared_memory import Block, open_block, remove_stale_blocks
from dbelief.arrays.streaming_copy import streaming_copy
from dbelief.core.layout import SegmentSpan
from dbelief.errors import Moved, Rejected
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc.segments_pb2 import SharedArray

from ..store.limits import MOST_BLOCKS, MOST_SHARED_BYTES

_NUMBER_BYTES = 4


class BlockView:
    """Where numbers of a flat vector lie in a block: (n,) float32, and which number of the vector is the first."""

    def __init__(self, numbers: np.ndarray, origin: int) -> None:
        self._numbers, self._origin = numbers, origin

    def of(self, span: SegmentSpan) -> np.ndarray:
        """(length,) float32 of a segment, where they lie; no copy.

        Raises
        ------
        Refused
            They are not all within the block.
        """
        first, stop = span.start - self._origin, span.stop - self._origin
        if first < 0 or stop > len(self._numbers):
            raise Rejected(
                f"segment {span.index}: numbers {span.start} to {span.stop} are not within a block that has "
                f"{len(self._numbers)} from {self._origin} on"
            )
        return self._numbers[first:stop]

    def put(self, span: SegmentSpan, values: np.ndarray) -> None:
        """Copy the (length,) numbers of a segment to where they lie.

        Raises
        ------
        Refused
            As `of`; or they are not float32.
        """
        if values.dtype != np.float32:
            raise Rejected(f"segment {span.index}: {values.dtype} numbers, and float32 ones lie in shared memory")
        streaming_copy(self.of(span), values)


class ConnectionBlocks:
    """The blocks of one connection.

    Attributes
    ----------
    held
        By name.
    streams
        In which it attaches them, and which are open.
    """

    def __init__(self) -> None:
        self.held: dict[str, Block] = {}
        self.streams = 0

    def area(self, told: SharedArray) -> BlockView:
        """Where numbers lie, from the one that is told of to the block's end.

        Raises
        ------
        Moved
            There is no such block (any more): its client asks again in another way.
        Refused
            It is not within its block, or no number may begin there.
        """
        block = self.held.get(told.block)
        if block is None:
            raise Moved(f"has no block {told.block[:32]!r} of this connection")
        if told.offset % _NUMBER_BYTES:
            raise Rejected(f"an array at {told.offset}: no number of {_NUMBER_BYTES} bytes begins there")
        whole = max(0, block.size - told.offset) // _NUMBER_BYTES * _NUMBER_BYTES
        return BlockView(block.bytes(told.offset, whole).view(np.float32), told.origin)


class SharedMemoryRegistry:
    """The blocks of all connections.

    Parameters
    ----------
    allowed
        Whether any is mapped at all.
    most_blocks, most_bytes
        Of one connection; of all together.
    """

    def __init__(
        self, allowed: bool = True, most_blocks: int = MOST_BLOCKS, most_bytes: int = MOST_SHARED_BYTES
    ) -> None:
        self._allowed, self._most_blocks, self._most_bytes = allowed, most_blocks, most_bytes
        self._peers: dict[str, ConnectionBlocks] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, peer: str) -> ConnectionBlocks:
        """What a connection has attached."""
        return self._peers.get(peer) or ConnectionBlocks()

    @contextmanager
    def connected(self, peer: str) -> Iterator[Callable[[wire.AttachRequest], wire.AttachReply]]:
        """Hold what one stream of a connection attaches for the length of a `with`; gives what answers its requests."""
        with self._lock:
            blocks = self._peers.setdefault(peer, ConnectionBlocks())
            blocks.streams += 1
        mine: set[str] = set()
        try:
            yield functools.partial(self._answer, blocks, mine)
        finally:
            for name in mine:
                self._leave(blocks, name)
            with self._lock:
                blocks.streams -= 1
                if not blocks.streams:
                    del self._peers[peer]
            remove_stale_blocks()  # a client that died may have left a name

    def _answer(self, blocks: ConnectionBlocks, mine: set[str], request: wire.AttachRequest) -> wire.AttachReply:
        """Leave blocks, and attach one; where that cannot be, the answer says why."""
        for name in mine.intersection(request.left):
            self._leave(blocks, name)
            mine.remove(name)
        if not request.HasField("block"):
            return wire.AttachReply()
        try:
            self._attach(blocks, request.block)
        except Rejected as error:
            return wire.AttachReply(refusal=str(error))
        mine.add(request.block.name)
        return wire.AttachReply(attached=True)

    def _attach(self, blocks: ConnectionBlocks, offered: wire.SharedBlock) -> None:
        if not self._allowed:
            raise Rejected("shares no memory")
        with self._lock:
            self._check_room(blocks, offered.name)
            if self._bytes + offered.size > self._most_bytes:
                raise Rejected(f"has {self._bytes} bytes in blocks, and takes no more than {self._most_bytes}")
            self._bytes += offered.size
        try:
            block = open_block(offered.name, offered.token, offered.size)
            with self._lock:
                self._check_room(blocks, offered.name)  # another stream may have attached it meanwhile
                blocks.held[offered.name] = block
        except BaseException:
            with self._lock:
                self._bytes -= offered.size
            raise

    def _check_room(self, blocks: ConnectionBlocks, name: str) -> None:
        if name in blocks.held or len(blocks.held) >= self._most_blocks:
            raise Rejected(f"has the block already, or {self._most_blocks} of this connection")

    def _leave(self, blocks: ConnectionBlocks, name: str) -> None:
        with self._lock:
            self._bytes -= blocks.held.pop(name).size
