"""The effect of Adagrad and a warm start: plain Downpour at a fixed rate beside them, at 1, 2, 4 and 8 replicas.

    DBELIEF_DATA=... python -m benchmarks.accuracy.learning_rates [--rates 0.1,0.5] [--replicas 1,2,4,8] [--seeds 0,1,2]

The job is that of replicas.py, as it stands (Adagrad, warm start) and with rule sgd, each of the rates and no warm
start; samples, mini-batches and all else are the same. A run that ends early because it diverged counts as failed, and
has no accuracy. The test set is used once per run, at its end.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, training
from dbelief.errors import RuntimeFailure


def attempt(job: Path, replicas: int, seed: int, folder: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Run the job once; where it fails, the reason stands in place of its figures."""
    try:
        return {**training.train(job, replicas, seed, folder, fields), "failed": None}
    except RuntimeFailure as error:
        row = {"replicas": replicas, "seed": seed, "test_accuracy": None, "failed": str(error)}
        report.progress(row)
        return row


def result(way: str, replicas: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures over all seeds of one way at one number of replicas; accuracies in percent."""
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


def cell(result: dict[str, Any]) -> str:
    parts = [f"{len(result['failed'])} failed"] if result["failed"] else []
    if result["accuracies"]:
        each = report.two_digits(result["accuracies"])
        parts.append(f"{result['median']:.2f} ({each}), staleness {result['staleness']:.2f}")
    return "; ".join(parts)


def main() -> None:
    parser = training.training_parser(__doc__, replicas="1,2,4,8")
    parser.add_argument("--rates", default="0.1,0.5", help="of SGD, separated by commas")
    arguments = parser.parse_args()
    ways: dict[str, dict[str, Any]] = {
        f"SGD, rate {rate}": {"strategy.rule": {"name": "sgd", "rate": float(rate)}, "strategy.warm_start": None}
        for rate in arguments.rates.split(",")
    }
    ways["Adagrad, warm start"] = {}
    common = options.fields_of(arguments)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        rows = [
            {"way": way, **attempt(arguments.job, count, seed, folder, {**common, **fields})}
            for seed in arguments.seeds
            for count in arguments.replicas
            for way, fields in ways.items()
        ]
    table = Table("replicas", *ways, title="Test accuracy in percent: median (each seed)")
    results = []
    for count in arguments.replicas:
        mine = [
            result(way, count, [row for row in rows if (row["way"], row["replicas"]) == (way, count)]) for way in ways
        ]
        table.add_row(str(count), *map(cell, mine))
        results += mine
    by_way = [
        {"way": way, **{f"at_{one['replicas']}": one["median"] for one in results if one["way"] == way}} for way in ways
    ]
    report.show(table, {"by_way": by_way, "results": results, "runs": rows})


if __name__ == "__main__":
    main()
