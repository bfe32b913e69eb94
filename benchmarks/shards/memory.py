"""Memory of a shard under load, and its growth.

    python -m benchmarks.shards.memory [--minutes 10] [--mebibytes 64] [--workers 4] [--allocator-minutes 2]

One shard, a real `dbelief ps`, holds a vector with Adagrad's state beside it. Workers pull and push all of it without a
pause, each on two streams at a time, of a process each, and a snapshot is written every 30 s. The shard's resident
memory (/proc/PID/status) is read each second.

    bound = 2 vectors + empty + 64 MiB + 2 MiB for each open stream

Twice the vectors, for all of them change while a snapshot is written, which shows them as they were (copy on write).
`empty` is a shard of one number, its rule compiled. A second, shorter run leaves the allocator as the C library has it,
and shows what our settings cost. Replicas run freely here: with the dial at 0 a shard also keeps each member's gradient
until the round closes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report
from benchmarks.harness.runs import status_kib
from dbelief.launch.child_process import Direct
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.tools.bench.peers import DIRECT, Peer
from dbelief.tools.bench.shards import Shards
from dbelief.tools.bench.workers import worker

SNAPSHOT_EVERY_S = 30.0
STREAMS = ("pull", "push")
"""Of each worker."""
SPARE_MIB, STREAM_MIB = 64.0, 2.0
MIB = 1 << 20
UNTUNED = """
from dbelief.__main__ import run
from dbelief.rpc import grpc_settings

grpc_settings.keep_blocks = lambda: None
run()
"""
"""A `dbelief` that leaves the allocator as it is."""


def resident_mib(shards: Shards) -> float:
    """What the shard has resident now."""
    (process,) = [child.process for child in shards.children]
    assert process is not None
    return status_kib(process.pid, "VmRSS") / 1024


def load(peer: Peer, turn: str, stop: threading.Event) -> int:
    """Let a process pull, or push, until `stop`; how often."""
    count = 0
    while not stop.is_set():
        peer.ask({"turns": [turn], "times": 1})
        count += 1
    return count


def measure(mebibytes: int, workers: int, seconds: float, tuned: bool, folder: Path) -> dict[str, Any]:
    size, sets = mebibytes * MIB // 4, folder / "snapshots"
    way = DIRECT if tuned else Direct([sys.executable, "-c", UNTUNED])
    with Shards(folder, 1, way=way) as shards:
        empty = resident_mib(shards)
    samples: list[tuple[float, float]] = []
    took: list[float] = []
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(folder, size, way=way))
        given = resident_mib(shards)
        turns = STREAMS * workers
        peers = [worker(stack, folder, shards, number) for number in range(len(turns))]
        stop = threading.Event()
        with ThreadPoolExecutor(len(turns)) as threads:
            stack.callback(stop.set)
            running = threads.map(load, peers, turns, itertools.repeat(stop))
            began = time.monotonic()
            while (at := time.monotonic() - began) < seconds:
                samples.append((at, resident_mib(shards)))
                if at >= SNAPSHOT_EVERY_S * (len(took) + 1):
                    took.append(shards.snapshot(sets / str(len(took)), str(len(took)))[1])
                    shutil.rmtree(sets / str(len(took) - 3), ignore_errors=True)
                time.sleep(1.0)
            stop.set()
            counts = list(running)
        peak = shards.resident_mib()
    written = list(folder.rglob("*.writing"))
    assert not written, written
    vectors = 2 * 4 * size / MIB
    settled_s = min(120.0, seconds / 2)
    late = [(at, mib) for at, mib in samples if at >= settled_s]
    slope = float(np.polyfit([at / 60 for at, _ in late], [mib for _, mib in late], 1)[0]) if len(late) > 2 else 0.0
    bound = empty + 2 * vectors + SPARE_MIB + STREAM_MIB * len(turns)
    return {
        "tuned": tuned,
        "seconds": seconds,
        "workers": workers,
        "streams": len(turns),
        "empty_mib": empty,
        "vectors_mib": vectors,
        "given_mib": given,
        "peak_mib": peak,
        "bound_mib": bound,
        "within": peak <= bound,
        "over_vectors_and_empty_mib": peak - 2 * vectors - empty,
        "settled_s": settled_s,
        "settled_mib": late[0][1],
        "growth_mib": max(mib for _, mib in late) - late[0][1],
        "slope_mib_per_min": slope,
        "snapshots": len(took),
        "snapshot_s": statistics.median(took) if took else None,
        "pulled_mib_per_s": sum(counts[::2]) * mebibytes / seconds,
        "pushed_mib_per_s": sum(counts[1::2]) * mebibytes / seconds,
        "samples": [[round(at, 1), round(mib, 1)] for at, mib in samples],
    }


ROWS = (
    ("empty, rule compiled", "empty_mib"),
    ("vectors", "vectors_mib"),
    ("all segments given", "given_mib"),
    ("peak", "peak_mib"),
    ("bound", "bound_mib"),
    ("peak less twice the vectors, and empty", "over_vectors_and_empty_mib"),
    ("growth once settled, most", "growth_mib"),
    ("growth once settled, a minute", "slope_mib_per_min"),
    ("pulled a second", "pulled_mib_per_s"),
    ("pushed a second", "pushed_mib_per_s"),
)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--mebibytes", type=int, default=64, help="the vector; Adagrad's state takes as much again")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--allocator-minutes", type=float, default=2.0, help="of the run with the C library's allocator"
    )
    arguments = parser.parse_args()
    if not sys.platform.startswith("linux"):
        raise SystemExit("memory reads /proc, which is Linux's")
    runs = []
    for tuned, minutes in ((True, arguments.minutes), (False, arguments.allocator_minutes)):
        if minutes > 0:
            with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
                runs.append(measure(arguments.mebibytes, arguments.workers, 60 * minutes, tuned, Path(folder)))
    streams = runs[0]["streams"]
    table = Table("MiB", *("our allocator settings" if run["tuned"] else "the C library's" for run in runs))
    table.title = f"a shard under {arguments.workers} workers, {streams} streams"
    for label, name in ROWS:
        table.add_row(label, *(f"{run[name]:.1f}" for run in runs))
    table.add_row("minutes, snapshots", *(f"{run['seconds'] / 60:g}, {run['snapshots']}" for run in runs))
    report.show(table, {"cores": os.cpu_count(), "runs": runs})
    if not runs[0]["within"]:
        raise SystemExit(f"peak {runs[0]['peak_mib']:.0f} MiB is over the bound of {runs[0]['bound_mib']:.0f} MiB")


if __name__ == "__main__":
    prepare_process()
    main()
