"""What Adagrad and a warm start are for: plain Downpour at a fixed rate beside them, at 1, 2, 4 and 8 replicas.

    DBELIEF_DATA=... python benchmarks/rates.py [--rates 0.1,0.5] [--replicas 1,2,4,8] [--seeds 0,1,2]

The job is that of replicas.py, as it stands (Adagrad, warm start) and with rule sgd, each of the rates and no warm
start; samples, mini-batches and all else are the same. A run that ends early because it diverged counts as failed, and
has no accuracy. The test set is used once per run, at its end.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from replicas import fields_of, one, parser
from rich.console import Console
from rich.table import Table

from dbelief.errors import RuntimeFailure


def tried(job: Path, replicas: int, seed: int, folder: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Run the job once; where it fails, the reason stands in place of its figures."""
    try:
        return {**one(job, replicas, seed, folder, fields), "failed": None}
    except RuntimeFailure as error:
        row = {"replicas": replicas, "seed": seed, "test_accuracy": None, "failed": str(error)}
        print(json.dumps(row), file=sys.stderr, flush=True)
        return row


def result(way: str, replicas: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What all seeds of one way at one number of replicas gave; accuracies in percent."""
    fine = [row for row in rows if row["failed"] is None]
    accuracies = [100 * row["test_accuracy"] for row in fine]
    return {
        "way": way,
        "replicas": replicas,
        "accuracies": accuracies,
        "median": statistics.median(accuracies) if fine else None,
        "staleness": statistics.mean(row["staleness_mean"] for row in fine) if fine else None,
        "failed": [row["failed"] for row in rows if row["failed"] is not None],
    }


def shown(result: dict[str, Any]) -> str:
    parts = [f"{len(result['failed'])} failed"] if result["failed"] else []
    if result["accuracies"]:
        each = " ".join(f"{accuracy:.2f}" for accuracy in result["accuracies"])
        parts.append(f"{result['median']:.2f} ({each}), staleness {result['staleness']:.2f}")
    return "; ".join(parts)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rates", default="0.1,0.5", help="of SGD, separated by commas")
    chosen = arguments.parse_args()
    ways: dict[str, dict[str, Any]] = {
        f"SGD, rate {rate}": {"strategy.rule": {"name": "sgd", "rate": float(rate)}, "strategy.warm_start": None}
        for rate in chosen.rates.split(",")
    }
    ways["Adagrad, warm start"] = {}
    common = fields_of(chosen)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        rows = [
            {"way": way, **tried(chosen.job, count, seed, folder, {**common, **fields})}
            for seed in chosen.seeds
            for count in chosen.replicas
            for way, fields in ways.items()
        ]
    table = Table("replicas", *ways, title="Test accuracy in percent: median (each seed)")
    results = []
    for count in chosen.replicas:
        mine = [
            result(way, count, [row for row in rows if (row["way"], row["replicas"]) == (way, count)]) for way in ways
        ]
        table.add_row(str(count), *map(shown, mine))
        results += mine
    Console(stderr=True).print(table)
    print(json.dumps({"results": results, "runs": rows}))


if __name__ == "__main__":
    main()
