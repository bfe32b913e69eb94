"""The recommendation model of `examples/scripts`: samples/s of the plain script, and of its job by workers of one host.

    python -m benchmarks.workers.dlrm [--rounds 5] [--samples 200000] [--epochs 3] [--workers 1,2]
    python -m benchmarks.workers.dlrm --kills [--seeds 0,1,2]

Every way takes its turn in every round; each process computes with one thread. A run of one epoch is subtracted from
one of more, so that the start, the drawing of the samples and the end count nowhere. Log loss and AUC are those of one
epoch (more would fit the rows of rare keys to their samples): on other samples, and of each prediction before its step.

With --kills: the job by two workers, with two shards and a follower each, in which one script is killed after a third
of the samples, and the leader of a shard after two thirds; beside it the same job without kills. "Counted" are the
samples in the sums of the model, which each push has added to; "samples" those of the coordinator.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table
from safetensors.numpy import load_file

from benchmarks.faults.scripts import COUNTS, LIMIT_S, kill_two
from benchmarks.harness import checkout, options, report, runs, timing
from benchmarks.harness.extras import needs_torch

SCRIPTS = checkout.EXAMPLES / "scripts"
PLAIN, KILLED = 0, 2
"""Workers of the plain script, and of the job with kills."""
MEASURES = ("loss", "auc", "progressive_log_loss", "progressive_auc")


def job_of(samples: int, epochs: int, seed: int) -> dict[str, Any]:
    """The job of the example, of so many samples."""
    fields: dict[str, Any] = yaml.safe_load((SCRIPTS / "dlrm.yaml").read_text())
    fields["data"]["train"], fields["limits"]["epochs"], fields["seed"] = samples, epochs, seed
    return fields


def command_of(folder: Path, fields: dict[str, Any], workers: int) -> list[str]:
    """Arguments of `dbelief` for the job, whose file is written into this folder."""
    (folder / "job.yaml").write_text(json.dumps(fields))
    words = [str(fields["data"]["train"]), str(fields["seed"]), str(fields["limits"]["epochs"])]
    script = [str(SCRIPTS / "dlrm_job.py"), *words]
    return ["run", "--quiet", "--job", "job.yaml", "--workers", str(workers), *script]


def measures_of(summary: dict[str, Any]) -> dict[str, float]:
    """What the script's `score` gives, of a run's summary."""
    return {"loss": summary["validation_loss"], **summary["validation_metrics"]}


def run(workers: int, samples: int, epochs: int, seed: int) -> dict[str, float]:
    """Measures of a run that is not disturbed."""
    if workers == PLAIN:
        command = [sys.executable, str(SCRIPTS / "dlrm.py"), str(samples), str(seed), str(epochs)]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, float] = ast.literal_eval(ended.stdout)
        return found
    with tempfile.TemporaryDirectory() as folder:
        fields = job_of(samples, epochs, seed) | {"snapshots": {"every_s": None}}
        fields["evaluate"]["every"] = 10**9
        runs.dbelief(folder, *command_of(Path(folder), fields, workers))
        return measures_of(json.loads((Path(folder) / "runs/dlrm/summary.json").read_text()))


def speed(workers: int, samples: int, epochs: int, seed: int) -> dict[str, Any]:
    """Samples/s between the end of the first epoch and that of the last, and the measures."""
    found: dict[str, float] = {}
    long_s = timing.seconds(lambda: run(workers, samples, epochs, seed))
    short_s = timing.seconds(lambda: found.update(run(workers, samples, 1, seed)))
    return {"workers": workers, "samples_per_s": samples * (epochs - 1) / (long_s - short_s), **found}


def with_followers(samples: int, seed: int, kills: bool) -> dict[str, Any]:
    """Measures of a job with followers, and what was counted."""
    with runs.temporary_run("runs/dlrm") as made:
        fields = job_of(samples, 1, seed) | {"replication": 2}
        launcher = made.start("run", command_of(made.folder, fields, KILLED))
        if kills:
            kill_two(launcher, made, samples)
        if launcher.wait(LIMIT_S):
            raise SystemExit("\n".join(made.output("run")))
        summary = made.summary()
        counted = int(load_file(made.run / "model.safetensors")["sums"][:-1].sum())
    return measures_of(summary) | {figure: summary[figure] for figure in COUNTS} | {"counted": counted}


def compare_speeds(arguments: argparse.Namespace) -> None:
    """Measure the ways in turn, and print the table."""
    ways, rows = [PLAIN, *arguments.workers], []
    for number, workers in timing.interleaved(ways, arguments.rounds):
        rows.append({"round": number, **speed(workers, arguments.samples, arguments.epochs, arguments.seeds[0])})
        report.progress(rows[-1])
    groups = timing.grouped(rows, "workers")
    medians = [{"workers": workers, **timing.medians(some, *some[0])} for (workers,), some in groups.items()]
    plain = medians[0]["samples_per_s"]
    table = Table("workers", "samples/s", "of the plain script", *MEASURES)
    for row in sorted(medians, key=lambda row: row["workers"]):
        row["x"] = row["samples_per_s"] / plain
        name = str(row["workers"] or "plain script")
        table.add_row(name, f"{row['samples_per_s']:,.0f}", f"{row['x']:.2f}", *(f"{row[one]:.4f}" for one in MEASURES))
    report.show(table, {"medians": medians, "rows": rows}, width=140)


def compare_kills(arguments: argparse.Namespace) -> None:
    """Run the job with and without kills, and print the table."""
    table, rows = Table("seed", "kills", *MEASURES, *COUNTS[:-1], "counted"), []
    for seed in arguments.seeds:
        for kills in (False, True):
            rows.append({"seed": seed, "kills": kills, **with_followers(arguments.samples, seed, kills)})
            report.progress(rows[-1])
            cells = [f"{rows[-1][name]:.4f}" for name in MEASURES]
            cells += [f"{rows[-1][name]:,}" for name in (*COUNTS[:-1], "counted")]
            table.add_row(str(seed), "two" if kills else "none", *cells)
    report.show(table, {"rows": rows}, width=140)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=200_000, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=3, help="of the longer run, 2 or more")
    parser.add_argument("--workers", type=options.numbers, default=[1, 2])
    parser.add_argument("--seeds", type=options.numbers, default=[0], help="without --kills only the first is used")
    parser.add_argument("--kills", action="store_true", help="a job with kills, in place of speeds")
    arguments = parser.parse_args()
    needs_torch()
    (compare_kills if arguments.kills else compare_speeds)(arguments)


if __name__ == "__main__":
    main()
