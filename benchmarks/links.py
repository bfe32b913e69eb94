"""What a message between two ranks takes, and what a host's link has carried."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np

from dbelief.worker.comm import Communicator

PING_BYTES, PINGS = (1, 1 << 22), (21, 3)


def ping(pair: Communicator) -> tuple[float, float]:
    """Give alpha in s and beta in s/byte, between ranks 0 and 1: half the time to and fro, of 1 byte and of 4 MiB."""
    medians = []
    for size, times in zip(PING_BYTES, PINGS, strict=True):
        array, seconds = np.zeros(size, np.uint8), []
        for _ in range(times + 1):
            began_s = time.perf_counter()
            for sends in (True, False) if pair.rank == 0 else (False, True):
                pair.send(array, 1 - pair.rank) if sends else pair.recv(array, 1 - pair.rank)
            seconds.append((time.perf_counter() - began_s) / 2)
        medians.append(statistics.median(seconds[1:]))
    return medians[0], (medians[1] - medians[0]) / (PING_BYTES[1] - PING_BYTES[0])


def carried() -> int:
    """Bytes that this host's link has carried away so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())
