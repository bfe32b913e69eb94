"""Cost of a slow replica to a batch method: three replicas that need 20 ms for a portion, and one that needs 200.

    python -m benchmarks.batch.stragglers [--passes 15]

Real processes, by hand: registry in the coordinator, one shard, four workers with --compute-wait. The ideal is total
work over total speed: 64 portions at 3/20 + 1/200 portions a millisecond take 413 ms. Three ways: small portions and
backup tasks; 16 portions without backup tasks (a portion waits four times as long, so the work is the same); and a
static split, in which each replica computes a quarter of the portions. A row is the median over the passes after the
first (in which no speed is known), as the coordinator counts them: from the first bundle given to the last done.
"""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, runs

REPLICAS = 4
QUICK_S, SLOW_S = 0.02, 0.2
PORTIONS = 64
DEADLINE_S = 300.0
SAMPLES = 1_280

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "64 portions, backup tasks": (64, {"bundle": 4}),
    "64 portions, no backup tasks": (64, {"bundle": 4, "backups": False}),
    "16 portions, backup tasks": (16, {"bundle": 1}),
    "16 portions, no backup tasks": (16, {"bundle": 1, "backups": False}),
    # Bundles cut beforehand, as many as replicas: each takes one.
    "static split": (64, {"bundle": PORTIONS // REPLICAS, "backups": False, "ordered": True}),
}


def job(portions: int, strategy: dict[str, Any], passes: int) -> dict[str, Any]:
    """A job whose computing takes no time, but for the wait."""
    return {
        "name": "stragglers",
        "model": {"layers": [{"dense": 2}], "loss": "softmax_cross_entropy"},
        # Four fifths of it are for training.
        "data": {"source": "synthetic", "kind": "classes", "samples": SAMPLES * 5 // 4, "features": 4, "noise": 1.0},
        "strategy": {"name": "sandblaster", "portion": SAMPLES // portions, **strategy},
        "limits": {"samples": passes * SAMPLES},
        "evaluate": {"every": None},
        "snapshots": {"every_s": None},
        "shards": 1,
        "replicas": REPLICAS,
    }


def passes_of(portions: int, strategy: dict[str, Any], passes: int) -> list[dict[str, Any]]:
    """The passes of one run."""
    with runs.temporary_run("stragglers") as run:
        coordinator, address = run.coordinator(job(portions, strategy, passes), DEADLINE_S)
        run.start("ps", ["ps", *address])
        for number in range(REPLICAS):
            wait_s = (SLOW_S if number == 0 else QUICK_S) * PORTIONS / portions
            worker = ["worker", *address, "--number", str(number), "--compute-wait", str(wait_s)]
            run.start(f"worker-{number}", worker)
        return [event for event in run.finish(coordinator.poll, DEADLINE_S) if event["event"] == "pass"]


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--passes", type=int, default=15, help="of each way; the first is left out")
    arguments = parser.parse_args()
    ideal_s = PORTIONS / ((REPLICAS - 1) / QUICK_S + 1 / SLOW_S)
    table = Table("way", "seconds a pass", "over the ideal", "least", "most", "backups a pass", "of them first")
    results = []
    for way, (portions, strategy) in WAYS.items():
        found = passes_of(portions, strategy, arguments.passes)[1:]
        over = [row["seconds"] / ideal_s for row in found]
        mean = statistics.fmean
        result = {
            "way": way,
            "passes": len(found),
            "median_s": statistics.median(row["seconds"] for row in found),
            "over_ideal": statistics.median(over),
            "least": min(over),
            "most": max(over),
            "backups": mean(row["launched"] for row in found),
            "won": mean(row["won"] for row in found),
        }
        report.progress(result)
        results.append(result)
        table.add_row(way, *(f"{value:.2f}" for key, value in result.items() if key not in ("way", "passes")))
    report.show(table, {"ideal_s": ideal_s, "results": results}, width=120)


if __name__ == "__main__":
    main()
