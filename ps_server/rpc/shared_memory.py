"""Memory of clients on this host, mapped by a shard: segments are read from it and written into it in place.

Only the connection that attached a block may name it. A handler that uses a block keeps it mapped until it is done,
even if its client has exited: `dbelief.arrays.shared_memory` explains why that is safe.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from dbelief.arrays.shared_memory import Block, open_block
from dbelief.arrays.streaming_copy import streaming_copy
from dbelief.core.layout import SegmentSpan
from dbelief.errors import Moved, Rejected
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb.segments_pb2 import SharedArray
from dbelief.security.named_socket import remove_stale_names

from ..store.admission import MOST_BLOCKS, MOST_SHARED_BYTES

_NUMBER_BYTES = 4
_MOST_VIEWS = 256
"""Views of blocks that are kept; a worker names the same few arrays in all its calls."""


class BlockView:
    """View of a flat vector's numbers in a block: (n,) float32, and the position of the first one in the vector."""

    def __init__(self, numbers: np.ndarray, origin: int) -> None:
        self._numbers, self._origin = numbers, origin

    def of(self, span: SegmentSpan) -> np.ndarray:
        """(length,) float32 numbers of a segment, in place; no copy.

        Raises
        ------
        Rejected
            They are not all within the block.
        """
        first, stop = span.start - self._origin, span.stop - self._origin
        if first < 0 or stop > len(self._numbers):
            raise Rejected(
                f"segment {span.index}: numbers {span.start} to {span.stop} are not within a block that has "
                f"{len(self._numbers)} from {self._origin} on"
            )
        return self._numbers[first:stop]

    def part(self, index: int, first: int, length: int) -> np.ndarray:
        """So many numbers of segment `index`, from a position in the block on; no copy.

        Raises
        ------
        Rejected
            They are not all within the block.
        """
        if first + length > len(self._numbers):
            held = len(self._numbers)
            raise Rejected(f"segment {index}: {length} numbers at {first} are not within a block of {held}")
        return self._numbers[first : first + length]

    def put(self, span: SegmentSpan, values: np.ndarray) -> None:
        """Copy the (length,) numbers of a segment into the block.

        Raises
        ------
        Rejected
            As `of`; or they are not float32.
        """
        if values.dtype != np.float32:
            raise Rejected(f"segment {span.index}: {values.dtype} numbers, and float32 ones lie in shared memory")
        streaming_copy(self.of(span), values)


class ConnectionBlocks:
    """Shared-memory blocks of one connection.

    Attributes
    ----------
    held
        Blocks by name.
    streams
        Number of open `Attach` streams of the connection.
    """

    def __init__(self) -> None:
        self.held: dict[str, Block] = {}
        self.streams = 0
        self._views: dict[tuple[str, int, int], BlockView] = {}

    def area(self, reference: SharedArray) -> BlockView:
        """View of a block from the given offset to the block's end.

        Raises
        ------
        Moved
            The block is not attached (any more): the client retries another way.
        Rejected
            The offset is not within the block, or is not a multiple of a number's size.
        """
        key = reference.block, reference.offset, reference.origin
        view = self._views.get(key)
        if view is not None:
            return view
        block = self.held.get(reference.block)
        if block is None:
            raise Moved(f"has no block {reference.block[:32]!r} of this connection")
        if reference.offset % _NUMBER_BYTES:
            raise Rejected(f"an array at {reference.offset}: no number of {_NUMBER_BYTES} bytes begins there")
        length = max(0, block.size - reference.offset) // _NUMBER_BYTES * _NUMBER_BYTES
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        view = self._views[key] = BlockView(block.bytes(reference.offset, length).view(np.float32), reference.origin)
        if reference.block not in self.held:  # detached meanwhile
            self._views.clear()
        return view

    def detach(self, name: str) -> Block:
        """Remove a block and the views of it; calls that use it keep it mapped."""
        block = self.held.pop(name)
        self._views.clear()
        return block


class SharedMemoryRegistry:
    """Shared-memory blocks of all connections.

    Parameters
    ----------
    allowed
        Whether any block may be mapped.
    most_blocks, most_bytes
        Limit of blocks per connection; limit of bytes over all connections.
    """

    def __init__(
        self, allowed: bool = True, most_blocks: int = MOST_BLOCKS, most_bytes: int = MOST_SHARED_BYTES
    ) -> None:
        self._allowed, self._most_blocks, self._most_bytes = allowed, most_blocks, most_bytes
        self._peers: dict[str, ConnectionBlocks] = {}
        self._bytes = 0
        self._lock = runtime.lock()

    def of(self, peer: str) -> ConnectionBlocks:
        """Blocks that a connection has attached."""
        return self._peers.get(peer) or ConnectionBlocks()

    @contextmanager
    def connected(self, peer: str) -> Iterator[Callable[[wire.AttachRequest], wire.AttachReply]]:
        """Context that keeps the blocks attached by one stream; yields the function that answers its requests."""
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
            remove_stale_names()  # a client that was killed may have left a name

    def _answer(self, blocks: ConnectionBlocks, mine: set[str], request: wire.AttachRequest) -> wire.AttachReply:
        """Detach the blocks that the request lists, and attach one; if that fails, the reply holds the reason."""
        for name in mine.intersection(request.released):
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
            self._bytes -= blocks.detach(name).size
