"""Latency and time for each byte of a message between two ranks, and the bytes that a host's link sent."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from benchmarks.harness.timing import seconds
from dbelief.worker.comm import Communicator

PING_BYTES, PINGS = (1, 1 << 22), (21, 3)


def alpha_beta(pair: Communicator) -> tuple[float, float]:
    """Give alpha in s and beta in s/byte, between ranks 0 and 1: half the time to and fro, of 1 byte and of 4 MiB."""
    medians = []
    for size, times in zip(PING_BYTES, PINGS, strict=True):
        array = np.zeros(size, np.uint8)

        def to_and_fro(array: np.ndarray = array) -> None:
            for sends in (True, False) if pair.rank == 0 else (False, True):
                pair.send(array, 1 - pair.rank) if sends else pair.recv(array, 1 - pair.rank)

        to_and_fro()
        medians.append(statistics.median(seconds(to_and_fro) / 2 for _ in range(times)))
    return medians[0], (medians[1] - medians[0]) / (PING_BYTES[1] - PING_BYTES[0])


def carried() -> int:
    """Bytes that this host's link has sent so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())
