"""A shard with many pushers: processor time and delay of a push at the same total rate from 16 and from 1,000.

    python -m benchmarks.shards.pushers [--pushers 16,1000] [--rate 100] [--seconds 20] [--rounds 5] [--parameters 16384]

Every pusher has the client of a worker, with a connection and a kept stream of its own, over TCP; they are in this
process, and push in turn, so that each has pushed before the clock starts. A push is timed from when it is due to its
acknowledgement. Processor time is the shard's alone. Groups are interleaved; figures are medians over the rounds.
"""

from __future__ import annotations

import queue
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, timing
from dbelief.core.push import Push, Pusher
from dbelief.errors import DbeliefError
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.tools.bench.shards import Shards

THREADS = 16
"""Threads that push: a push that is due waits for one of them, never for another push of the same pusher."""
FIGURES = ("cpu_ms", "p50_ms", "p99_ms", "threads", "resident_mib")


class _Pushers:
    """So many pushers, each with a client of its own."""

    def __init__(self, shards: Shards, count: int, first: int) -> None:
        self._shards = shards
        self._gradient = np.full(shards.placement.size, 1e-3, np.float32)
        self._held = np.zeros(len(shards.spans), np.int64)
        self._pushers = [Pusher(first + n, first + n) for n in range(count)]
        self._clients: list[ShardedParameterClient] = [shards.client(pusher) for pusher in self._pushers]
        self._sequence = [0] * count
        self.refused = 0

    def push(self, number: int) -> None:
        """One push of one of them."""
        self._sequence[number] += 1
        push = Push(self._pushers[number], self._sequence[number], np.float32(1e-6))
        try:
            self._clients[number].push(self._gradient, self._held, push)
        except DbeliefError:
            self.refused += 1

    def run(self, rate: float, seconds: float) -> list[float]:
        """Push in turn at this total rate; returns the delay of each push, in seconds."""
        due: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        delays: list[float] = []

        def work() -> None:
            while (task := due.get()) is not None:
                number, due_s = task
                self.push(number)
                delays.append(time.perf_counter() - due_s)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        began_s = time.perf_counter()
        for turn in range(int(rate * seconds)):
            due_s = began_s + turn / rate
            time.sleep(max(0.0, due_s - time.perf_counter()))
            due.put((turn % len(self._clients), due_s))
        for _ in threads:
            due.put(None)
        for thread in threads:
            thread.join()
        return delays

    def close(self) -> None:
        """Close their connections."""
        for client in self._clients:
            client.close()


def _figures(shards: Shards, count: int, first: int, rate: float, seconds: float) -> dict[str, Any]:
    """Figures of one round."""
    pushers = _Pushers(shards, count, first)
    try:
        for number in range(count):
            pushers.push(number)
        cpu_s = shards.cpu_s()
        delays = sorted(pushers.run(rate, seconds))
        cpu_s = shards.cpu_s() - cpu_s
        (process,) = [child.process for child in shards.children]
        assert process is not None
        return {
            "pushers": count,
            "pushes": len(delays),
            "refused": pushers.refused,
            "cpu_ms": 1e3 * cpu_s / len(delays),
            "p50_ms": 1e3 * statistics.median(delays),
            "p99_ms": 1e3 * delays[int(0.99 * len(delays))],
            "threads": len(list(Path(f"/proc/{process.pid}/task").iterdir())),
            "resident_mib": _resident_mib(process.pid),
        }
    finally:
        pushers.close()


def _resident_mib(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--pushers", type=options.numbers, default="16,1000")
    parser.add_argument("--rate", type=float, default=100.0, help="pushes a second of all together (100)")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=16_384)
    words = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dbelief-")))
        shards = stack.enter_context(Shards(folder, words.parameters))
        first = 1
        for number, count in timing.interleaved(words.pushers, words.rounds):
            row = {"round": number, **_figures(shards, count, first, words.rate, words.seconds)}
            first += count
            report.progress(row)
            rows.append(row)
    table = Table("pushers", "processor time, ms", "delay, median", "99 %", "threads", "memory, MiB", "refused")
    found = {}
    for (count,), some in timing.grouped(rows, "pushers").items():
        found[count] = timing.medians(some, *FIGURES)
        refused = sum(row["refused"] for row in some)
        table.add_row(str(count), *(f"{found[count][name]:.4g}" for name in FIGURES), str(refused))
    report.show(table, {"medians": found, "rows": rows})


if __name__ == "__main__":
    prepare_process()
    main()
