"""What codecs cost in accuracy and save in bytes: the same job by each of them, against float32 as it is.

    DBELIEF_DATA=... python benchmarks/codec_accuracy.py [--job examples/mnist.yaml] [--seeds 0,1,2] [--data FOLDER]

Everything but `wire` stays the same: hyper-parameters, samples, replicas, which run freely. Shards apply plain SGD, for
whose steps only the sum of what is sent counts; Adagrad divides by what it has seen, which is another thing for one bit
and for a threshold, and wants a rate of its own (`--rule ""` leaves the job's). The figure is the median
test accuracy over the seeds; the test set is used once per run, at its end. Bytes are the payload of all segments that
replicas sent and received, initial values and evaluations among them; memory is not shared, so that all of them travel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from replicas import fields_of, numbers
from rich.console import Console
from rich.table import Table

from dbelief.rundir.summary import read_summary

WIRES = {
    "fp32": ("fp32", "fp32"),
    "bf16 both ways": ("bf16", "bf16"),
    "fp16 both ways": ("fp16", "fp16"),
    "one-bit": ("one-bit", "fp32"),
    "one-bit, bf16 back": ("one-bit", "bf16"),
    "threshold": ("{name: threshold, tau: TAU}", "fp32"),
}
"""Codec of what is pushed, and of what is pulled."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--job", type=Path, default=Path(__file__).parents[1] / "examples" / "mnist.yaml")
    made.add_argument("--seeds", type=numbers, default="0,1,2")
    made.add_argument("--codecs", default=",".join(str(n) for n in range(len(WIRES))), help="rows, from 0")
    made.add_argument("--rule", default="{name: sgd, rate: 0.3}", help="of the shards; empty: as the job file says")
    made.add_argument("--tau", default="3.0e-3", help="of the threshold, in gradient units")
    made.add_argument("--data", type=Path, help="what DBELIEF_DATA names, where it is not set")
    made.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    return made


def one(job: Path, codec: str, tau: str, seed: int, folder: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Run the job once; what matters of its summary."""
    push, pull = WIRES[codec]
    fields = {**fields, "wire.push": push.replace("TAU", tau), "wire.pull": pull}
    fields |= {"name": "coded", "output": folder, "seed": seed}
    settings = [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "dbelief", "train", str(job), "--quiet", "--no-shared-memory", *settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary = read_summary(Path(folder) / "coded" / "summary.json")
    ways = {way: sum(row.get(way, 0) for row in summary.bytes_per_replica.values()) for way in ("sent", "received")}
    row = {
        "codec": codec,
        "seed": seed,
        "test_accuracy": summary.test_accuracy,
        **{f"{way}_bytes": count for way, count in ways.items()},
        "bytes_per_replica": summary.bytes_per_replica,
        "residual_lost": summary.residual_lost,
        "staleness_mean": summary.staleness_mean,
        "samples": summary.samples,
        "wall_s": summary.wall_s,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> None:
    arguments = parser().parse_args()
    if arguments.data is not None:
        os.environ["DBELIEF_DATA"] = str(arguments.data.resolve())
    codecs = [list(WIRES)[row] for row in numbers(arguments.codecs)]
    fields = {"strategy.rule": arguments.rule} if arguments.rule else {}
    fields |= fields_of(arguments)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        rows = [
            one(arguments.job, codec, arguments.tau, seed, folder, fields)
            for seed in arguments.seeds
            for codec in codecs
        ]
    table = Table(
        "codec", "test accuracy, each seed", "median", "against the first", "MB sent", "MB received", "wall s"
    )
    results: list[dict[str, Any]] = []
    for codec in codecs:
        mine = [row for row in rows if row["codec"] == codec]
        median = statistics.median(100 * row["test_accuracy"] for row in mine)
        against = median - (results[0]["median"] if results else median)
        sent, received, wall_s = (
            statistics.median(row[name] for row in mine) for name in ("sent_bytes", "received_bytes", "wall_s")
        )
        results.append(
            {"codec": codec, "median": median, "against": against, "sent_bytes": sent, "received_bytes": received}
        )
        each = " ".join(f"{100 * row['test_accuracy']:.2f}" for row in mine)
        figures = f"{median:.2f}", f"{against:+.2f}", f"{sent / 1e6:.0f}", f"{received / 1e6:.0f}", f"{wall_s:.0f}"
        table.add_row(codec, each, *figures)
    Console(stderr=True).print(table)
    print(json.dumps({"results": results, "runs": rows}))


if __name__ == "__main__":
    main()
