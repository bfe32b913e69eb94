"""One training by `dbelief.train` and its figures, for benchmarks that compare test accuracies over seeds."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import dbelief
from benchmarks.harness import checkout, options, report


def training_parser(doc: str | None, replicas: str) -> argparse.ArgumentParser:
    """Options: job, fields, seeds and numbers of replicas."""
    parser = options.new_parser(doc)
    options.add_job(parser, checkout.EXAMPLES / "mnist.yaml")
    parser.add_argument("--replicas", type=options.numbers, default=replicas)
    parser.add_argument("--seeds", type=options.numbers, default="0,1,2")
    return parser


def train(job: Path, replicas: int, seed: int, folder: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Run the job once; the compared figures of its summary."""
    extra: dict[str, Any] = {name.replace(".", "__"): value for name, value in fields.items()}
    summary = dbelief.train(job, replicas=replicas, seed=seed, output=folder, **extra).summary
    copied = ("test_accuracy", "validation_accuracy", "staleness_mean", "samples")
    row = {
        "replicas": replicas,
        "seed": seed,
        **{name: getattr(summary, name) for name in copied},
        "least_share": min(n / summary.samples for n in summary.samples_per_replica.values()),
        "wall_s": summary.wall_s,
    }
    report.progress(row)
    return row


def accuracies(rows: list[dict[str, Any]]) -> tuple[list[float], float]:
    """Test accuracies in percent, and their median."""
    percent = [100 * row["test_accuracy"] for row in rows]
    return percent, statistics.median(percent)
