"""Where the numbers of a push come from: an array of the host, or one on a device that is fetched as it is sent.

From a device the first block would leave only when the whole vector is copied, and the line would stand still
meanwhile. So each block is copied on a stream of its own into one of two pinned buffers, and sent when its event has
come to pass, while the next one is on its way into the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from dbelief.core.layout import Range


class Source(Protocol):
    """Numbers of one flat vector."""

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """Give the numbers of each range, on the host; a block holds until the next one is asked for."""
        ...


class HostSource:
    """(N,) numbers where the sender can read them. No copy."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """See `Source`."""
        return (self._values[start:stop] for start, stop in ranges)


class DeviceSource:
    """(N,) numbers on a CUDA device; make it on the thread that computes them.

    Every walk over the blocks has buffers and a stream of its own, so that several shards are sent to at once, and a
    walk that broke off spoils nothing. Pinned memory is CuPy's to keep and to give again.

    Parameters
    ----------
    xp
        CuPy.
    values
        What is sent; not to be changed before the push is acknowledged. Work that the current stream of this thread
        has been given so far is waited for, later work is not.
    """

    def __init__(self, xp: Any, values: Any) -> None:
        self._xp = xp
        self._values = values
        self._ready = xp.cuda.get_current_stream().record()

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """See `Source`. Cost: one copy from the device, in two buffers as long as the longest range."""
        longest = max(stop - start for start, stop in ranges)
        with self._values.device:
            stream = self._xp.cuda.Stream(non_blocking=True)
            stream.wait_event(self._ready)
            buffers = [self._pinned(longest) for _ in range(2)]
        try:
            under_way = self._fetch(stream, ranges[0], buffers[0])
            for number in range(len(ranges)):
                block, arrived = under_way
                if number + 1 < len(ranges):  # what lay there before was sent before this block was asked for
                    under_way = self._fetch(stream, ranges[number + 1], buffers[(number + 1) % 2])
                arrived.synchronize()
                yield block
        finally:
            stream.synchronize()  # CuPy hands out a buffer that is unused here, though a copy into it still runs

    def _pinned(self, length: int) -> np.ndarray:
        memory = self._xp.cuda.alloc_pinned_memory(length * self._values.dtype.itemsize)
        return np.frombuffer(memory, self._values.dtype, length)

    def _fetch(self, stream: Any, span: Range, buffer: np.ndarray) -> tuple[np.ndarray, Any]:
        """Begin a copy; the block it fills, and the event that tells when it has."""
        start, stop = span
        block = buffer[: stop - start]
        with self._values.device:
            self._values[start:stop].get(stream=stream, out=block, blocking=False)
            return block, stream.record()
