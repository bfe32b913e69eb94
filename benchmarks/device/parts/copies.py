"""Copies between host and device, from pinned and from pageable memory, and those by which a push and a fetch go.

Shards on the same host read a push from memory that they share with the worker: the blocks of `DeviceSource` come by
two pinned buffers, and are copied on. A fetch is copied from shared memory to the device. Beside them stand copies
within the device, and of the host into shared memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.device.findings import Findings
from benchmarks.harness import timing
from dbelief.arrays.backend import Backend, aligned, select_backend
from dbelief.arrays.push_source import DeviceSource
from dbelief.arrays.shared_memory import HEADER_BYTES, make_block
from dbelief.arrays.streaming_copy import streaming_copy, warm_up
from dbelief.core.layout import make_segments, nominal_length

NUMBERS, ROUNDS = 64_000_000, 9
SMALL_NUMBERS, SMALL_ROUNDS = 200_000, 2


def measure(found: Findings, small: bool) -> None:
    """Copy a vector of float32 each way, in every round once."""
    backend = select_backend("cuda")
    numbers, rounds = (SMALL_NUMBERS, SMALL_ROUNDS) if small else (NUMBERS, ROUNDS)
    ways = by_host(numbers, backend)
    shared = make_block(4 * numbers)
    if shared is None:
        found.left_out("shared memory", "this host has no memory that processes can share")
    else:
        ways |= by_shared_memory(shared.bytes(HEADER_BYTES, 4 * numbers).view(np.float32), backend)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number, name in timing.interleaved(list(ways), 1 + rounds):
        took = timing.seconds(ways[name])
        if number:  # buffers are made in the first round
            seconds[name].append(took)
    for name, times in seconds.items():
        best = 4e-9 * numbers / min(times)
        found.figure(name, 4e-9 * numbers / statistics.median(times), "GB/s", {"fastest": best})


def by_host(numbers: int, backend: Backend) -> dict[str, Callable[[], object]]:
    """Copies to and from memory of this process alone; each returns when it is complete."""
    xp, settle = backend.xp, backend.xp.cuda.get_current_stream().synchronize
    pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(4 * numbers), np.float32, numbers)
    pageable, there, other = aligned(numbers, np.float32), xp.zeros(numbers, np.float32), xp.zeros(numbers, np.float32)
    pinned[:] = pageable[:] = 1.0

    def then(copy: Callable[[], object]) -> Callable[[], object]:
        return lambda: (copy(), settle())

    return {
        "to the device, pinned": then(lambda: there.set(pinned)),
        "to the device, pageable": then(lambda: there.set(pageable)),
        "from the device, pinned": then(lambda: there.get(out=pinned)),
        "from the device, pageable": then(lambda: there.get(out=pageable)),
        "within the device": then(lambda: xp.copyto(other, there)),
    }


def by_shared_memory(shared: np.ndarray, backend: Backend) -> dict[str, Callable[[], object]]:
    """Copies to and from (n,) float32 that two processes may share."""
    xp, numbers = backend.xp, shared.size
    there: Any = xp.ones(numbers, np.float32)
    pageable = aligned(numbers, np.float32)
    ranges = [(span.start, span.stop) for span in make_segments([(0, numbers)], nominal_length(numbers, 1))]
    warm_up()

    def push() -> None:
        for (start, stop), block in zip(ranges, DeviceSource(xp, there).blocks(ranges), strict=True):
            streaming_copy(shared[start:stop], block)

    def fetch() -> None:
        there.set(shared)
        xp.cuda.get_current_stream().synchronize()

    return {
        "a push, by pinned buffers to shared memory": push,
        "a fetch, from shared memory": fetch,
        "the host's memory to shared memory": lambda: streaming_copy(shared, pageable),
    }
