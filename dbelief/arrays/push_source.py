"""Source of the numbers of a push that are not in an array of the host; on a device, it copies them during the push.

From a device the first block could be sent only after a copy of the complete vector, with the network idle meanwhile.
So each block is copied on a separate stream into one of two pinned buffers, and sent when its event has completed,
while the next one is copied into the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from dbelief.core.layout import Range


class PushSource(Protocol):
    """(N,) float32 that are made, or brought to the host, where a push reads them."""

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """Yield the numbers of each range, ascending, on the host; a block is valid until the next iteration.

        Several threads may iterate at once, each over ranges of its own, and read the same ranges again.
        """


class DeviceSource:
    """(N,) numbers on a CUDA device; create it on the thread that computes them.

    Every iteration over the blocks has its own buffers and stream, so that several shards receive concurrently, and an
    aborted iteration does not affect others. CuPy's pool caches the pinned memory.

    Parameters
    ----------
    xp
        CuPy.
    values
        The numbers; they must not change before the push is acknowledged. The copies wait for work that was queued on
        this thread's current stream so far, but not for later work.
    """

    def __init__(self, xp: Any, values: Any) -> None:
        self._xp = xp
        self._values = values
        self._ready = xp.cuda.get_current_stream().record()

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """Yield the numbers of each range, on the host; a block is valid until the next iteration.

        Cost: one copy from the device, in two buffers as long as the longest range.
        """
        longest = max(stop - start for start, stop in ranges)
        with self._values.device:
            stream = self._xp.cuda.Stream(non_blocking=True)
            stream.wait_event(self._ready)
            buffers = [self._pinned(longest) for _ in range(2)]
        try:
            under_way = self._fetch(stream, ranges[0], buffers[0])
            for number in range(len(ranges)):
                block, arrived = under_way
                if number + 1 < len(ranges):  # the next buffer's earlier block was sent before this one was requested
                    under_way = self._fetch(stream, ranges[number + 1], buffers[(number + 1) % 2])
                arrived.synchronize()
                yield block
        finally:
            stream.synchronize()  # CuPy reuses a buffer that is unused here, even if a copy into it still runs

    def _pinned(self, length: int) -> np.ndarray:
        memory = self._xp.cuda.alloc_pinned_memory(length * self._values.dtype.itemsize)
        return np.frombuffer(memory, self._values.dtype, length)

    def _fetch(self, stream: Any, span: Range, buffer: np.ndarray) -> tuple[np.ndarray, Any]:
        """Start a copy; returns the block that it fills, and the event of its completion."""
        start, stop = span
        block = buffer[: stop - start]
        with self._values.device:
            self._values[start:stop].get(stream=stream, out=block, blocking=False)
            return block, stream.record()
