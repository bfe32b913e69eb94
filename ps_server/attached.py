"""Memory of clients on this host that a shard has mapped: segments are read from it and written into it in place.

What is mapped for a connection only that connection may name. A handler that is at work on a block keeps it mapped
until it is done, whether or not its client is still there: `dbelief.shared` says why that harms nobody.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from dbelief.errors import Moved, Refused
from dbelief.rpc import frames
from dbelief.rpc import parameters_pb2 as wire
from dbelief.shared import Block, open_block, sweep
from dbelief.streaming import copy

from .limits import MOST_BLOCKS, MOST_SHARED_BYTES


class Blocks:
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

    def room(self, slot: frames.Slot, itemsize: int) -> np.ndarray:
        """(length,) bytes of a slot for numbers of a size, as they lie.

        Raises
        ------
        Moved
            There is no such block (any more): its client asks again in another way.
        Refused
            The slot is not within its block, or no number may begin where it does.
        """
        block = self.held.get(slot.block)
        if block is None:
            raise Moved(f"has no block {slot.block[:32]!r} of this connection")
        if slot.offset % itemsize:
            raise Refused(f"a slot at {slot.offset}: no number of {itemsize} bytes begins there")
        return block.bytes(slot.offset, slot.length)

    def numbers(self, part: frames.Part) -> np.ndarray:
        """The payload of a segment as an array where it lies: 1-D, in the message or in a block; no copy.

        Raises
        ------
        Refused, Moved
            As `room` and `frames.numbers`.
        """
        if part.slot is None:
            return frames.numbers(part)
        dtype = frames.DTYPES.get(part.codec)
        if dtype is None or part.slot.length != part.length * dtype.itemsize:
            raise Refused(
                f"segment {part.index}: a slot of {part.slot.length} bytes for {part.length} numbers in {part.codec}"
            )
        return self.room(part.slot, dtype.itemsize).view(dtype)

    def put(self, slot: frames.Slot, values: np.ndarray) -> None:
        """Copy (n,) numbers into a slot.

        Raises
        ------
        Refused, Moved
            As `room`; or the slot is not as long as they are.
        """
        if slot.length != values.nbytes:
            raise Refused(f"a slot of {slot.length} bytes for {values.nbytes}")
        copy(self.room(slot, values.itemsize).view(values.dtype), values)


class Attached:
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
        self._peers: dict[str, Blocks] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, peer: str) -> Blocks:
        """What a connection has attached."""
        return self._peers.get(peer) or Blocks()

    @contextmanager
    def connected(self, peer: str) -> Iterator[Callable[[wire.AttachRequest], wire.AttachReply]]:
        """Hold what one stream of a connection attaches for the length of a `with`; gives what answers its requests."""
        with self._lock:
            blocks = self._peers.setdefault(peer, Blocks())
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
            sweep()  # a client that died may have left a name

    def _answer(self, blocks: Blocks, mine: set[str], request: wire.AttachRequest) -> wire.AttachReply:
        """Leave blocks, and attach one; where that cannot be, the answer says why."""
        for name in mine.intersection(request.left):
            self._leave(blocks, name)
            mine.remove(name)
        if not request.HasField("block"):
            return wire.AttachReply()
        try:
            self._attach(blocks, request.block)
        except Refused as error:
            return wire.AttachReply(refusal=str(error))
        mine.add(request.block.name)
        return wire.AttachReply(attached=True)

    def _attach(self, blocks: Blocks, offered: wire.SharedBlock) -> None:
        if not self._allowed:
            raise Refused("shares no memory")
        with self._lock:
            if offered.name in blocks.held or len(blocks.held) >= self._most_blocks:
                raise Refused(f"has the block already, or {self._most_blocks} of this connection")
            if self._bytes + offered.size > self._most_bytes:
                raise Refused(f"has {self._bytes} bytes in blocks, and takes no more than {self._most_bytes}")
            self._bytes += offered.size
        try:
            block = open_block(offered.name, offered.token, offered.size)
        except BaseException:
            with self._lock:
                self._bytes -= offered.size
            raise
        with self._lock:
            blocks.held[offered.name] = block

    def _leave(self, blocks: Blocks, name: str) -> None:
        with self._lock:
            self._bytes -= blocks.held.pop(name).size
