"""Cost of codecs in accuracy, and their saving in bytes: the same job by each of them, against plain float32.

    DBELIEF_DATA=... python -m benchmarks.accuracy.codecs [--job examples/mnist.yaml] [--seeds 0,1,2] [--data FOLDER]

Everything but `wire` stays the same: hyper-parameters, samples, replicas, which run freely. Shards apply plain SGD, for
whose steps only the sum of what is sent counts; Adagrad divides by what it has seen, which is another thing for one bit
and for a threshold, and wants a rate of its own (`--rule ""` leaves the job's). The figure is the median
test accuracy over the seeds; the test set is used once per run, at its end. Bytes are the payload of all segments that
replicas sent and received, initial values and evaluations among them; memory is not shared, so that all of them travel.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, options, report, runs, timing, training
from dbelief.rundir.summary import read_summary

WIRES = {
    "fp32": ("fp32", "fp32"),
    "bf16 both ways": ("bf16", "bf16"),
    "fp16 both ways": ("fp16", "fp16"),
    "one-bit": ("one-bit", "fp32"),
    "one-bit, bf16 back": ("one-bit", "bf16"),
    "threshold": ("{name: threshold, tau: TAU}", "fp32"),
    "int8": ("int8", "fp32"),
    "int4": ("int4", "fp32"),
    "top-k": ("top-k", "fp32"),
}
"""Codecs of pushes and of pulls."""


def one(job: Path, codec: str, tau: str, seed: int, folder: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Run the job once; the compared figures of its summary."""
    push, pull = WIRES[codec]
    fields = {**fields, "wire.push": push.replace("TAU", tau), "wire.pull": pull}
    fields |= {"name": "coded", "output": folder, "seed": seed}
    runs.dbelief(Path(), "train", str(job), "--quiet", "--no-shared-memory", *options.settings(fields))
    summary = read_summary(Path(folder) / "coded" / "summary.json")
    ways = {way: sum(row.get(way, 0) for row in summary.bytes_per_replica.values()) for way in ("sent", "received")}
    copied = ("bytes_per_replica", "residual_lost", "staleness_mean", "samples", "wall_s")
    row = {
        "codec": codec,
        "seed": seed,
        "test_accuracy": summary.test_accuracy,
        **{f"{way}_bytes": count for way, count in ways.items()},
        **{name: getattr(summary, name) for name in copied},
    }
    report.progress(row)
    return row


def main() -> None:
    parser = options.new_parser(__doc__)
    options.add_job(parser, checkout.EXAMPLES / "mnist.yaml")
    parser.add_argument("--seeds", type=options.numbers, default="0,1,2")
    parser.add_argument("--codecs", type=options.numbers, default=[*range(len(WIRES))], help="rows, from 0")
    parser.add_argument("--rule", default="{name: sgd, rate: 0.3}", help="of the shards; empty: as the job file says")
    parser.add_argument("--tau", default="3.0e-3", help="of the threshold, in gradient units")
    parser.add_argument("--data", type=Path, help="the folder that DBELIEF_DATA names, where it is not set")
    arguments = parser.parse_args()
    if arguments.data is not None:
        os.environ["DBELIEF_DATA"] = str(arguments.data.resolve())
    codecs = [list(WIRES)[row] for row in arguments.codecs]
    fields = {"strategy.rule": arguments.rule} if arguments.rule else {}
    fields |= options.fields_of(arguments)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        rows = [
            one(arguments.job, codec, arguments.tau, seed, folder, fields)
            for seed in arguments.seeds
            for codec in codecs
        ]
    columns = ("codec", "test accuracy, each seed", "median", "against the first", "MB sent", "MB received", "wall s")
    table = Table(*columns)
    results: list[dict[str, Any]] = []
    for codec in codecs:
        mine = [row for row in rows if row["codec"] == codec]
        each, median = training.accuracies(mine)
        against = median - (results[0]["median"] if results else median)
        sent, received, wall_s = timing.medians(mine, "sent_bytes", "received_bytes", "wall_s").values()
        results.append(
            {"codec": codec, "median": median, "against": against, "sent_bytes": sent, "received_bytes": received}
        )
        figures = f"{median:.2f}", f"{against:+.2f}", f"{sent / 1e6:.0f}", f"{received / 1e6:.0f}", f"{wall_s:.0f}"
        table.add_row(codec, report.two_digits(each), *figures)
    report.show(table, {"results": results, "runs": rows})


if __name__ == "__main__":
    main()
