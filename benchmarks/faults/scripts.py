"""PyTorch scripts of which one is killed, and then the leader of their shard: the result, and what was trained twice.

    DBELIEF_DATA=... python -m benchmarks.faults.scripts [--scripts mnist_cnn,...] [--seeds 0,1,2]

The scripts are those of `examples/scripts`, two replicas each, asynchronous, with a shard and its follower. A third of
the samples into the job one script is killed; two thirds into it, the shard's leader. Beside it the same job without
kills. Loss and accuracy are what the script's `score` gives, of the result.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.accuracy.scripts import JOBS, figures_of, job_command, job_fields, source_of
from benchmarks.harness import options, report, runs
from benchmarks.harness.extras import needs_torch
from dbelief.rundir.events import read_events

REPLICAS = 2
LIMIT_S = 3_600.0
COUNTS = ("samples", "pushes_lost", "pushes_trained_twice", "died")
"""Figures of a summary that say what was trained, and who failed."""


def run(name: str, seed: int, source: str, kills: bool) -> dict[str, Any]:
    """Figures of one job."""
    fields = job_fields(name, seed, REPLICAS, False) | {"replication": 2}
    total = JOBS[name]["epochs"] * JOBS[name]["train"]
    with runs.temporary_run("runs/script") as made:
        launcher = made.start("run", job_command(made.folder, name, fields, source))
        if kills:
            kill_two(launcher, made, total)
        if launcher.wait(LIMIT_S):
            raise SystemExit("\n".join(made.output("run")))
        summary = made.summary()
    return figures_of(summary) | {figure: summary[figure] for figure in COUNTS}


def kill_two(launcher: subprocess.Popen[bytes], made: runs.Run, total: int) -> None:
    """Kill a script after a third of all samples of the job, and the leader of a shard after two thirds."""
    for share, victim in ((1 / 3, _script), (2 / 3, _leader)):
        _wait(launcher, made, share * total)
        os.kill(victim(made), signal.SIGKILL)


def _wait(launcher: subprocess.Popen[bytes], made: runs.Run, samples: float) -> None:
    runs.wait_for(lambda: made.samples() >= samples or launcher.poll() is not None or None, "samples", LIMIT_S)
    if launcher.poll() is not None:
        raise SystemExit("the job ended before its kills")


def _script(made: runs.Run) -> int:
    """Process of the first script."""
    for pid in made.processes():
        with contextlib.suppress(OSError):  # it has ended
            if b"DBELIEF_NAME=worker-0\0" in Path(f"/proc/{pid}/environ").read_bytes():
                return pid
    raise SystemExit("no script runs")


def _leader(made: runs.Run) -> int:
    """Process of the shard that joined last, and serves segments."""
    members = [event for event in read_events(made.run / "events.jsonl") if event["event"] == "member"]
    name = [one["name"] for one in members if one["what"] == "joined" and one["role"] == "shard"][-1]
    for pid, words in made.processes().items():
        if "dbelief ps " in " ".join(words) and f"--name {name}" in " ".join(words):
            return pid
    raise SystemExit(f"{name} does not run")


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--scripts", type=options.words, default=list(JOBS))
    parser.add_argument("--seeds", type=options.numbers, default=[0, 1, 2])
    arguments = parser.parse_args()
    needs_torch()
    rows = []
    table = Table("script", "seed", "undisturbed", "with kills", "samples", "lost", "trained twice")  # loss, accuracy
    for name in arguments.scripts:
        source = source_of(name)
        for seed in arguments.seeds:
            plain, killed = (run(name, seed, source, kills) for kills in (False, True))
            rows.append({"script": name, "seed": seed, "undisturbed": plain, "with kills": killed})
            report.progress(rows[-1])
            counts = (killed[figure] for figure in ("samples", "pushes_lost", "pushes_trained_twice"))
            scores = (f"{one['loss']:.4f}, {one['accuracy']:.4f}" for one in (plain, killed))
            table.add_row(name, str(seed), *scores, *(f"{count:,}" for count in counts))
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
