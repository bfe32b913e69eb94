"""Start and end of a job: from the command to the first report of trained samples, and from the end to the exit.

    python -m benchmarks.startup.first_sample [--job examples/digits.yaml] [--rounds 5] [--set FIELD=VALUE ...]

The command is `dbelief train`, with a warm and with a cold cache of compiled loops (an empty `NUMBA_CACHE_DIR`),
interleaved. A worker reports a moment after its first mini-batch, so the first sample is trained earlier than that.
Processor time is that of all processes. Medians over the rounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, options, report, timing
from dbelief.rundir.events import read_events

LIMIT_S = 600.0
FIGURES = ("first_report_s", "done_s", "exit_s", "cpu_s")


def _run(job: Path, fields: list[str], cache: Path | None) -> dict[str, float]:
    """Figures of one run; `cache`: an empty folder for compiled loops, None: the one in use."""
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        command = [sys.executable, "-P", "-m", "dbelief", "train", str(job), "--quiet", f"--set=output={folder}"]
        environment = os.environ | ({"NUMBA_CACHE_DIR": str(cache)} if cache is not None else {})
        cpu_s, began_s = timing.processor_s(), time.time()
        subprocess.run([*command, *fields], env=environment, timeout=LIMIT_S, check=True, capture_output=True)
        ended_s = time.time()
        (path,) = Path(folder).glob("*/events.jsonl")
        events = list(read_events(path))
    first_s = next(_moment(event) for event in events if event["event"] == "progress" and event["samples"])
    done_s = next(_moment(event) for event in events if event["event"] == "state" and event["state"] == "done")
    return {
        "first_report_s": first_s - began_s,
        "done_s": done_s - began_s,
        "exit_s": ended_s - done_s,
        "cpu_s": timing.processor_s() - cpu_s,
    }


def _moment(event: dict[str, Any]) -> float:
    """When it was recorded, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()


def main() -> None:
    parser = options.new_parser(__doc__)
    options.add_job(parser, checkout.EXAMPLES / "digits.yaml")
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    fields = options.settings(options.fields_of(words))
    _run(words.job, fields, None)  # fills the caches
    rows = []
    for number, way in timing.interleaved(["warm", "cold"], words.rounds):
        with tempfile.TemporaryDirectory(prefix="dbelief-") as cache:
            row = {"cache": way, "round": number, **_run(words.job, fields, Path(cache) if way == "cold" else None)}
        report.progress(row)
        rows.append(row)
    table = Table("cache", "first report, s", "done, s", "exit after it, s", "processor time, s")
    found = {}
    for (way,), some in timing.grouped(rows, "cache").items():
        found[way] = timing.medians(some, *FIGURES)
        table.add_row(way, *(f"{found[way][name]:.2f}" for name in FIGURES))
    report.show(table, {"medians": found, "rows": rows})


if __name__ == "__main__":
    main()
