"""Ray as a way from process to process: an actor as a shard, arrays through plasma, its store in shared memory.

What is pulled or pushed counts as there when the other side has a view of it that it may only read: one copy each way.
Ray has helpers of its own, a dozen processes, so it is measured in rounds of its own, with a socket beside it. It is
told to stay on the loopback, to show no dashboard and to report to nobody, keeps its files in the benchmark's folder,
and ends with it.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from .control_socket import Line
from .peers import Peer

STORE_BLOCKS = 8
"""Blocks that the store has room for: what is under way, what is held, and what is not collected yet."""
STORE_LEAST = 256 << 20
"""Bytes."""

_ALONE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else it takes this machine's address in place of the loopback's
}
"""What has Ray report to nobody, and listen on the loopback alone."""


class Ray:
    """An array out of an actor, or into one."""

    name, turns = "Ray", ("pull", "push")

    def __init__(self, stack: ExitStack, folder: Path, largest: int) -> None:
        self._driver = stack.enter_context(Peer("ray", folder))
        self._driver.ask({"folder": str(folder), "store": max(STORE_LEAST, STORE_BLOCKS * largest)})

    def prepare(self, size: int) -> None:
        """See `Way`."""
        self._driver.ask({"bytes": size})

    def turn(self, what: str) -> float:
        """See `Way`."""
        return float(self._driver.ask(what))


def be_driver(line: Line) -> None:
    """A driver of Ray with one actor; tells how long each turn took."""
    os.environ |= _ALONE
    import ray

    told = line.hear()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=told["store"],
        _node_ip_address="127.0.0.1",
        _temp_dir=told["folder"],
    )
    try:
        _drive(line, ray)
    finally:
        ray.shutdown()


def _drive(line: Line, ray: Any) -> None:
    class Shard:
        """Holds an array; Ray sends the class itself to its process."""

        def hold(self, array: np.ndarray) -> None:
            self.array = array

        def held(self) -> np.ndarray:
            return self.array

    shard = ray.remote(Shard).remote()
    line.tell("ready")
    block = np.ones(0, np.float32)
    while (what := line.hear()) is not None:
        if isinstance(what, dict):
            block = np.ones(what["bytes"] // 4, np.float32)
        began = time.perf_counter()
        if what == "pull":
            array = ray.get(shard.held.remote())
            took = time.perf_counter() - began
            assert array.nbytes == block.nbytes
            del array  # its room in the store is free again
        else:
            ray.get(shard.hold.remote(ray.put(block)))
            took = time.perf_counter() - began
        line.tell(took)
