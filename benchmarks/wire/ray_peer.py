"""Ray as a transport between processes: an actor as a shard, arrays through plasma, its shared-memory object store.

A pull or push is complete when the other side has a read-only view of the data: one copy each way. Ray starts a dozen
helper processes, so it is measured in separate rounds, together with a socket. It is configured to use the loopback
only, without dashboard and without usage reports. Its files are in the benchmark's folder, and it ends with the
benchmark.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.wire.peer_process import start_peer
from dbelief.tools.bench.control_socket import Line

STORE_BLOCKS = 8
"""Capacity of the object store, in blocks: those in transit, the one held, and those not yet collected."""
STORE_LEAST = 256 << 20
"""Smallest size of the object store, in bytes."""

_ALONE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # otherwise Ray replaces the loopback with this machine's address
}
"""Environment that disables Ray's usage reports and restricts it to the loopback."""


class Ray:
    """An array read from an actor, or written to one."""

    name, turns = "Ray", ("pull", "push")

    def __init__(self, stack: ExitStack, folder: Path, largest: int) -> None:
        self._driver = stack.enter_context(start_peer("ray", folder))
        self._driver.ask({"folder": str(folder), "store": max(STORE_LEAST, STORE_BLOCKS * largest)})

    def prepare(self, size: int) -> None:
        """See `MeasuredWay`."""
        self._driver.ask({"bytes": size})

    def turn(self, what: str) -> float:
        """See `MeasuredWay`."""
        return float(self._driver.ask(what))


def be_driver(line: Line) -> None:
    """Run a Ray driver with one actor; report the seconds of each operation."""
    os.environ |= _ALONE
    import ray

    settings = line.receive_message()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=settings["store"],
        _node_ip_address="127.0.0.1",
        _temp_dir=settings["folder"],
    )
    try:
        _drive(line, ray)
    finally:
        ray.shutdown()


def _drive(line: Line, ray: Any) -> None:
    class Shard:
        """Actor that holds an array; Ray sends this class to the actor's process."""

        def hold(self, array: np.ndarray) -> None:
            self.array = array

        def held(self) -> np.ndarray:
            return self.array

    shard = ray.remote(Shard).remote()
    line.send_message("ready")
    block = np.ones(0, np.float32)
    while (what := line.receive_message()) is not None:
        if isinstance(what, dict):
            block = np.ones(what["bytes"] // 4, np.float32)
        began = time.perf_counter()
        if what == "pull":
            array = ray.get(shard.held.remote())
            took = time.perf_counter() - began
            assert array.nbytes == block.nbytes
            del array  # releases its space in the store
        else:
            ray.get(shard.hold.remote(ray.put(block)))
            took = time.perf_counter() - began
        line.send_message(took)
