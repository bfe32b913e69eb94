"""One replica on all cores against one on each part of the cores, with its own weights (You et al. 2017, 6.2).

    DBELIEF_DATA=... python -m benchmarks.workers.core_sharing [--parts 2] [--batch 128] [--samples 20000] [--rounds 3]

LeNet on MNIST by synchronous SGD, always with --batch samples in a step:

    one            one replica, with a BLAS thread for each core
    one thread     the same with one BLAS thread
    free           --parts replicas, a thread each, wherever the kernel puts them
    pinned         the same, each keeping to its share of the cores

Their gradients are summed by a tree over sockets. The ways are run in turn, each run a whole job whose first quarter is
not counted; the figure is milliseconds for a step, the median over the rounds and their range.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from rich.table import Table

from benchmarks.harness import checkout, options, report, runs
from dbelief.rundir.events import read_events

JOB = checkout.EXAMPLES / "mnist_lenet.yaml"


def ways(parts: int) -> dict[str, dict[str, object]]:
    """Fields of the job for each way."""
    cores = len(os.sched_getaffinity(0))
    return {
        "one": {"replicas": 1, "threads": cores},
        "one thread": {"replicas": 1, "threads": 1},
        "free": {"replicas": parts, "threads": max(1, cores // parts)},
        "pinned": {"replicas": parts, "pin_cores": "true"},
    }


def milliseconds(fields: dict[str, object], batch: int, samples: int) -> float:
    """Milliseconds of a step in one run."""
    share = batch // int(str(fields["replicas"]))
    with tempfile.TemporaryDirectory() as folder:
        strategy = f"{{name: sync-sgd, batch: {share}, lease: {25 * share}, rule: {{name: momentum, rate: 0.01}}}}"
        all_fields = {
            **fields,
            "strategy": strategy,
            "limits": f"{{samples: {samples}}}",
            "evaluate": "{every: 1000000000}",
            "shards": 1,
            "output": folder,
        }
        runs.dbelief(Path(), "train", str(JOB), "--quiet", *options.settings(all_fields))
        events = read_events(Path(folder) / "mnist_lenet" / "events.jsonl")
        counted = [
            (e["elapsed_s"], e["samples"]) for e in events if e["event"] == "progress" and e["samples"] > samples / 4
        ]
    (begin_s, first), (end_s, last) = counted[0], counted[-1]
    return float(1000 * (end_s - begin_s) / (last - first) * batch)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.batch % given.parts:
        sys.exit(f"--batch must be a multiple of --parts: {given.batch} samples, {given.parts} parts")
    found: dict[str, list[float]] = {way: [] for way in ways(given.parts)}
    for number in range(given.rounds):
        for way, fields in ways(given.parts).items():
            found[way].append(milliseconds(fields, given.batch, given.samples))
            print(f"round {number + 1}, {way}: {found[way][-1]:.1f} ms", file=sys.stderr)
    table = Table("way", "ms for a step", "range", "against one", box=None)
    base, results = statistics.median(found["one"]), []
    for way, times in found.items():
        row = {"median_ms": statistics.median(times), "least_ms": min(times), "most_ms": max(times)}
        results.append({"way": way, **row, "speed_up": base / row["median_ms"]})
        spread, ratio = f"{row['least_ms']:.1f} to {row['most_ms']:.1f}", f"{base / row['median_ms']:.2f} times as fast"
        table.add_row(way, f"{row['median_ms']:.1f}", spread, ratio)
    report.show(table, {"batch": given.batch, "results": results})


if __name__ == "__main__":
    main()
