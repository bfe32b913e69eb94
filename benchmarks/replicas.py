"""Does asynchronous training learn? The same job at 1, 2, 4 and 8 replicas against one replica.

    DBELIEF_DATA=... python benchmarks/replicas.py [--job examples/mnist.yaml] [--replicas 1,2,4,8] [--seeds 0,1,2]

Everything but the number of replicas stays the same: hyper-parameters, samples, warm start. Replicas run freely, and
the staleness that came of it is printed. The figure is the median test accuracy over the seeds; the test set is used
once per run, at its end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import dbelief


def parser(about: str | None) -> argparse.ArgumentParser:
    """What is run: job, numbers of replicas, seeds, and fields that are the same for all of them."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--job", type=Path, default=Path(__file__).parents[1] / "examples" / "mnist.yaml")
    made.add_argument("--replicas", type=numbers, default="1,2,4,8")
    made.add_argument("--seeds", type=numbers, default="0,1,2")
    made.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    return made


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def fields_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return dict(item.split("=", 1) for item in arguments.set)


def one(job: Path, replicas: int, seed: int, folder: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Run the job once; what matters of its summary."""
    extra: dict[str, Any] = {name.replace(".", "__"): value for name, value in fields.items()}
    summary = dbelief.train(job, replicas=replicas, seed=seed, output=folder, **extra)
    shares = [n / summary.samples for n in summary.samples_per_replica.values()]
    row = {
        "replicas": replicas,
        "seed": seed,
        "test_accuracy": summary.test_accuracy,
        "validation_accuracy": summary.validation_accuracy,
        "staleness_mean": summary.staleness_mean,
        "samples": summary.samples,
        "least_share": min(shares),
        "wall_s": summary.wall_s,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> None:
    arguments = parser(__doc__).parse_args()
    counts, fields = arguments.replicas, fields_of(arguments)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        rows = [one(arguments.job, count, seed, folder, fields) for seed in arguments.seeds for count in counts]
    table = Table(
        "replicas", "test accuracy, each seed", "median", "against one", "staleness", "wall s", title="Downpour"
    )
    results = []
    base = None
    for count in counts:
        mine = [row for row in rows if row["replicas"] == count]
        accuracies = [100 * row["test_accuracy"] for row in mine]
        median = statistics.median(accuracies)
        base = median if base is None else base
        staleness = statistics.mean(row["staleness_mean"] for row in mine)
        wall_s = statistics.median(row["wall_s"] for row in mine)
        results.append({"replicas": count, "median": median, "against_one": median - base, "staleness": staleness})
        each = " ".join(f"{a:.2f}" for a in accuracies)
        table.add_row(str(count), each, f"{median:.2f}", f"{median - base:+.2f}", f"{staleness:.2f}", f"{wall_s:.0f}")
    Console(stderr=True).print(table)
    print(json.dumps({"results": results, "runs": rows}))


if __name__ == "__main__":
    main()
