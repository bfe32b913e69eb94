"""PyTorch scripts of which one is killed, and then the leader of their shard: the result, and what was trained twice.

    DBELIEF_DATA=... python -m benchmarks.faults.scripts [--scripts mnist_cnn,...] [--seeds 0,1,2]

The scripts are those of `examples/scripts`, two replicas each, asynchronous, with a shard and its follower. A third of
the samples into the job one script is killed; two thirds into it, the shard's leader. Beside it the same job without
kills. Loss and accuracy are what the script's `score` gives, of the result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.accuracy.scripts import JOBS, SCRIPTS, figures_of, job_fields, source_of
from benchmarks.harness import options, report
from benchmarks.harness.extras import needs_torch

REPLICAS = 2
LIMIT_S = 3_600.0


def run(name: str, seed: int, source: str, kills: bool) -> dict[str, Any]:
    """Figures of one job."""
    epochs = JOBS[name]["epochs"]
    fields = job_fields(name, seed, REPLICAS, False) | {"replication": 2}
    words = [str(SCRIPTS / f"{name}_job.py"), source, str(seed), str(epochs)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(json.dumps(fields))
        command = [sys.executable, "-m", "dbelief", "run", "--quiet", "--job", "job.yaml", *words]
        log = Path(folder) / "log"
        with open(log, "w") as output, subprocess.Popen(command, cwd=folder, stdout=output, stderr=output) as launcher:
            events = Path(folder) / "runs/script/events.jsonl"
            total = epochs * JOBS[name]["train"]
            for share, victim in ((1 / 3, _script), (2 / 3, _leader)) if kills else ():
                _wait(launcher, events, share * total)
                os.kill(victim(Path(folder)), signal.SIGKILL)
            if launcher.wait(LIMIT_S):
                raise SystemExit(log.read_text())
        summary = json.loads((Path(folder) / "runs/script/summary.json").read_text())
    figures = ("samples", "pushes_lost", "pushes_trained_twice", "died")
    return figures_of(summary) | {figure: summary[figure] for figure in figures}


def _wait(launcher: subprocess.Popen[bytes], events: Path, samples: float) -> None:
    until_s = time.monotonic() + LIMIT_S
    while _samples(events) < samples:
        if launcher.poll() is not None or time.monotonic() > until_s:
            raise SystemExit("the job ended before its kills")
        time.sleep(0.1)


def _events(path: Path, event: str) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == event]


def _samples(events: Path) -> int:
    return max((row["samples"] for row in _events(events, "progress")), default=0)


def _script(folder: Path) -> int:
    """Process of the first script."""
    return _process(folder, lambda process: b"DBELIEF_NAME=worker-0\0" in (process / "environ").read_bytes())


def _leader(folder: Path) -> int:
    """Process of the shard that serves the segments."""
    joined = [row for row in _events(folder / "runs/script/events.jsonl", "member") if row["what"] == "joined"]
    name = [row["name"] for row in joined if row["role"] == "shard"][-1]
    words = b"dbelief ps ", f"--name {name}".encode()
    return _process(folder, lambda process: all(word in _title(process) for word in words))


def _title(process: Path) -> bytes:
    return (process / "cmdline").read_bytes().replace(b"\0", b" ")


def _process(folder: Path, wanted: Callable[[Path], bool]) -> int:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if os.readlink(process / "cwd") == str(folder.resolve()) and wanted(process):
                    return int(process.name)
            except OSError:  # it has ended, or is another user's
                continue
    raise SystemExit("no such process")


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
