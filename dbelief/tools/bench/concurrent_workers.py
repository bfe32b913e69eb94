"""Throughput of several concurrent workers on several shards, and processor time of a small model's step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbelief.launch.child_process import Way

from .interleave import WARM_UP, percentiles
from .peers import DIRECT, Peer
from .shards import Shards
from .workers import worker

ROUNDS = 10
"""Rounds that each crowd's operations are spread over, so that all crowds on the same shards alternate."""
SMALL = 203_530
"""Parameters of a network of 784, 256 and 10 units."""
SMALL_SHARDS = 2
_TRIED = 20  # steps before the clock starts


@dataclass
class Crowd:
    """Workers that run the same operations concurrently.

    Attributes
    ----------
    seconds
        Of each operation.
    wall_s
        From the start of the first operation to the end of the last, summed over the rounds.
    """

    transport: str
    what: str
    peers: Sequence[Peer]
    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def go(self, times: int) -> None:
        """Run the operation `times` times in each worker."""
        began = time.perf_counter()
        for peer in self.peers:
            peer.line.send_message({"turns": [self.what], "times": times})
        self.seconds += [one for peer in self.peers for one in peer.receive_message()["seconds"]]
        self.wall_s += time.perf_counter() - began

    def figures(self, shards: int, size: int) -> dict[str, Any]:
        """One row: percentiles, and the throughput of all workers together."""
        found = percentiles(self.seconds)
        return {
            "transport": self.transport,
            "what": self.what,
            "workers": len(self.peers),
            "shards": shards,
            "turns": len(self.seconds),
            "mib": size >> 20,
            **found,
            "p99_over_p50": found["p99_ms"] / found["p50_ms"],
            "gb_per_s": len(self.seconds) * size / self.wall_s / 1e9,
        }


def crowds(
    folder: Path,
    transports: Sequence[str],
    workers: Sequence[int],
    shards: Sequence[int],
    turns: int,
    size: int,
    limit_s: float,
    way: Way = DIRECT,
) -> list[dict[str, Any]]:
    """Push and pull of vectors of `size` bytes, for every number of workers on every number of shards.

    Parameters
    ----------
    turns
        Smallest number of operations of all workers of a crowd together, where the time is enough.
    limit_s
        Seconds of all operations, about.
    way
        Starts the processes.
    """
    rows = []
    for count in shards:
        with ExitStack() as stack:
            there = stack.enter_context(Shards(folder, size // 4, count, way=way))
            numbers = itertools.count()
            peers = {
                transport: [
                    worker(stack, folder, there, next(numbers), transport=transport, way=way)
                    for _ in range(max(workers))
                ]
                for transport in transports
            }
            those = [
                Crowd(transport, what, peers[transport][:some])
                for some in workers
                for what in ("push", "pull")
                for transport in transports
            ]
            _take_turns(those, turns, limit_s / len(shards))
            rows += [crowd.figures(count, size) for crowd in those]
    return rows


def _take_turns(those: Sequence[Crowd], turns: int, limit_s: float) -> None:
    began_s = time.monotonic()
    for crowd in those:
        crowd.go(WARM_UP)
        crowd.seconds.clear()
        crowd.wall_s = 0.0
    for _ in range(ROUNDS):
        for crowd in those:
            crowd.go(-(-turns // (ROUNDS * len(crowd.peers))))
        if time.monotonic() - began_s >= limit_s:
            break


def small(folder: Path, transport: str, steps: int, limit_s: float, way: Way = DIRECT) -> dict[str, Any]:
    """Processor time of pull and push of a small model; of fewer steps where these take longer than `limit_s`."""
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(folder, SMALL, SMALL_SHARDS, way=way))
        peer = worker(stack, folder, shards, transport=transport, way=way)
        tried = peer.ask({"turns": ["pull", "push"], "times": _TRIED})["seconds"]
        steps = min(steps, max(_TRIED, int(limit_s * _TRIED / sum(tried))))
        there = shards.cpu_s()
        done = peer.ask({"turns": ["pull", "push"], "times": steps})
        here, there, wall = (s * 1e3 / steps for s in (done["cpu_s"], shards.cpu_s() - there, sum(done["seconds"])))
    return {
        "transport": transport,
        "parameters": SMALL,
        "shards": SMALL_SHARDS,
        "segments": len(shards.spans),
        "steps": steps,
        "cpu_ms_per_step": here + there,
        "worker_cpu_ms": here,
        "shards_cpu_ms": there,
        "wall_ms": wall,
    }
