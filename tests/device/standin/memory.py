"""Memory of devices and pinned memory of the host, as CuPy's pools give it out: every piece counted.

What is given out holds 0xFF bytes (NaN as a float) until it is written, in the order of the stream that asked for it.
Freed memory goes back to its pool at once and is given out again, whatever still runs on it.
"""

from __future__ import annotations

import bisect
import sys
import weakref
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from .order import Access, Block, Order, Queue

UNIT = 512
GUARD = 1 << 16
"""Bytes around each block that are nobody's, so that an address that runs past one does not fall into the next."""

DEVICE_BYTES = 2**34
"""What each device says that it has."""

HERE = Path(__file__).parent


class Piece:
    """Memory that is in use until this object is gone.

    Attributes
    ----------
    numbers
        Its bytes.
    """

    def __init__(self, block: Block, numbers: np.ndarray) -> None:
        self.block, self.numbers = block, numbers


class Memory:
    """All memory of a process that the devices know.

    Attributes
    ----------
    fresh
        Bytes that came from the driver, not from a pool, by device; the host's pinned ones are -1's.
    requests
        Bytes of each request, by device.
    asked
        Where in the product device memory was asked for, and for how many bytes, how often: ("file:line", bytes).
    """

    def __init__(self, order: Order) -> None:
        self.fresh: Counter[int] = Counter()
        self.requests: defaultdict[int, list[int]] = defaultdict(list)
        self.asked: Counter[tuple[str, int]] = Counter()
        self._order = order
        self._free: defaultdict[tuple[int, int, int], list[tuple[Block, np.ndarray]]] = defaultdict(list)
        self._addresses: list[int] = []
        self._blocks: list[tuple[Block, np.ndarray]] = []

    def request(self, size: int, device: int, queue: Queue) -> Piece:
        """Memory of a device, for use on a queue of it."""
        with self._order.lock:
            self.asked[_caller(), size] += 1
            block, numbers = self._take(size, device, queue.number)
            if size:
                self._order.submit(queue, "memory", lambda: numbers.fill(0xFF))
            return self._piece(block, numbers, queue.number)

    def pinned(self, size: int) -> Piece:
        """Pinned memory of the host."""
        with self._order.lock:
            block, numbers = self._take(size, -1, -1)
            numbers.fill(0xFF)
            return self._piece(block, numbers, -1)

    def used(self, device: int) -> int:
        """Bytes of a device's pool."""
        return self.fresh[device]

    def find(self, address: int, size: int, device: int | None = None) -> tuple[Block, np.ndarray] | None:
        """The block that holds so many bytes from an address on; of a device, or any."""
        place = bisect.bisect_right(self._addresses, address) - 1
        if place < 0:
            return None
        block, numbers = self._blocks[place]
        inside = address + size <= block.address + block.used
        return (block, numbers) if inside and device in (None, block.device) else None

    def at(self, address: int, size: int, device: int, what: str) -> np.ndarray:
        """Bytes of a device by their address; a mistake where they are not its own."""
        found = self.find(address, size)
        if found is None:
            raise self._order.mistake(f"{what} is at {address:#x}, which is no device's memory for {size} bytes")
        block, numbers = found
        if block.device != device:
            whose = f"of device {block.device}" if block.device >= 0 else "pinned memory of the host"
            raise self._order.mistake(f"{what} is {whose}, and device {device} computes")
        return numbers[address - block.address :][:size]

    def unheld(self, array: np.ndarray) -> np.ndarray:
        """The same numbers by a view that keeps no pinned memory in use, as little as a copy on its way does."""
        found = self.find(array.ctypes.data, array.nbytes, -1)
        if found is None or not array.flags.c_contiguous:
            return array
        start = array.ctypes.data - found[0].address
        return found[1][start : start + array.nbytes].view(array.dtype).reshape(array.shape)

    def access(self, array: np.ndarray, writes: bool) -> list[Access]:
        """What touching an array means; nothing for pageable host memory."""
        if not array.size:
            return []
        low, high = np.lib.array_utils.byte_bounds(array)
        found = self.find(low, high - low)
        return [Access(found[0], low, high, writes)] if found else []

    def _take(self, size: int, device: int, arena: int) -> tuple[Block, np.ndarray]:
        self.requests[device].append(size)
        rounded = -(-size // UNIT) * UNIT
        free = self._free[device, arena, rounded]
        if free:
            free[-1][0].used = size
            return free.pop()
        self.fresh[device] += rounded
        raw = np.empty(rounded + 2 * GUARD + UNIT, np.uint8)
        start = -raw.ctypes.data % UNIT + GUARD
        numbers = raw[start : start + rounded]
        block = Block(numbers.ctypes.data, rounded, device, size)
        if rounded:
            place = bisect.bisect(self._addresses, block.address)
            self._addresses.insert(place, block.address)
            self._blocks.insert(place, (block, numbers))
        return block, numbers

    def _piece(self, block: Block, numbers: np.ndarray, arena: int) -> Piece:
        piece = Piece(block, numbers)
        free = self._free[block.device, arena, block.size]
        weakref.finalize(piece, free.append, (block, numbers)).atexit = False
        return piece


def _caller() -> str:
    """The product's line that is at work."""
    frame: Any = sys._getframe(1)
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else "?"
