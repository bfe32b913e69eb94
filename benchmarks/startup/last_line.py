"""Seconds from the cause of a job's end to its last line and the shell, of jobs that end well or fail.

    python -m benchmarks.startup.last_line [--runs 5] [--kinds well,data,script,start,file]

Kinds: `well`, the job has trained its samples; `data`, the Python source of its data raises in training; `script`, its
script raises after it has joined, and is not started again any more; `start`, its script cannot be started; `file`, the
job file has a mistake. The cause is when the job begins to close (`events.jsonl`), or when the user's code raises for
the last time, which it writes to a file, or for `file` when the command is started. Medians over the runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from rich.table import Table

from benchmarks.harness import options, report
from benchmarks.harness.runs import COMMAND
from dbelief.rundir.events import read_events

JOB = """name: end
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.01}, warm_start: null}
limits: {epochs: 2}
shards: 2
replicas: 2
"""
DATA = """
import time
from pathlib import Path
import numpy as np

class Waves:
    units = {f"part {number}": 200 for number in range(10)}

    def read(self, name):
        if name == "part 7":
            Path(__file__).with_name("cause").write_text(str(time.time()))
            raise ValueError("it is torn")
        return np.zeros((200, 8), np.float32), np.arange(200) % 10

class Held(Waves):
    units = {"part 20": 200}
"""
SCRIPT = """
import time
from pathlib import Path
import torch
import dbelief

model = torch.nn.Linear(4, 2)
with dbelief.join() as job:
    sync = dbelief.torch.Sync(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    Path(__file__).with_name("cause").write_text(str(time.time()))
    raise RuntimeError("a mistake in the loop")
"""
START = """
import time
from pathlib import Path
Path(__file__).with_name("cause").write_text(str(time.time()))
import a_module_that_is_missing
"""
OF_A_SCRIPT = {
    "model: {layers: [{dense: 10}], loss: softmax_cross_entropy}": "model: {source: script}",
    "data: {source: digits}": "data: {source: script, train: 1000, validation: 0}",
}
WANTED = {"well": 0, "data": 1, "script": 1, "start": 1, "file": 2}


def prepare(folder: Path, kind: str) -> list[str]:
    """Write a job's files; returns the arguments of `dbelief`."""
    job = JOB
    if kind == "data":
        job = job.replace(
            "{source: digits}", "{source: python, train: waves.py:Waves, validation: waves.py:Held, classes: 10}"
        )
        (folder / "waves.py").write_text(DATA)
    elif kind == "file":
        job = job.replace("epochs", "epoch")
    elif kind in ("script", "start"):
        for old, new in OF_A_SCRIPT.items():
            job = job.replace(old, new)
        (folder / "script.py").write_text(START if kind == "start" else SCRIPT)
    (folder / "job.yaml").write_text(job)
    by_script = kind in ("script", "start")
    return ["run", "--quiet", "--job", "job.yaml", "script.py"] if by_script else ["train", "--quiet", "job.yaml"]


def one_end(kind: str) -> tuple[float, str]:
    """Seconds from the cause to the shell, and the last line."""
    with tempfile.TemporaryDirectory(prefix="dbelief-") as name:
        folder = Path(name)
        command = [*COMMAND, *prepare(folder, kind)]
        cause_s = time.time()
        ended = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
        ended_s = time.time()
        line = (ended.stderr.splitlines() or [""])[-1]
        if ended.returncode != WANTED[kind]:
            raise SystemExit(f"{kind}: exit code {ended.returncode}: {line}")
        if kind == "well":
            events = read_events(folder / "runs/end/events.jsonl")
            cause_s = next(
                datetime.fromisoformat(one["time"]) for one in events if one.get("state") == "closing"
            ).timestamp()
        elif kind != "file":
            cause_s = float((folder / "cause").read_text())
        return ended_s - cause_s, line.replace(str(folder), "")


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kinds", type=options.words, default="well,data,script,start,file")
    arguments = parser.parse_args()
    table = Table("end", "seconds to the shell, median", "most", "last line")
    found = []
    for kind in arguments.kinds:
        ends = [one_end(kind) for _ in range(arguments.runs)]
        seconds = [end[0] for end in ends]
        print(f"{kind}: {[round(one, 2) for one in seconds]}: {ends[0][1]}", file=sys.stderr, flush=True)
        found.append({"kind": kind, "median_s": statistics.median(seconds), "most_s": max(seconds)})
        table.add_row(kind, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", ends[0][1])
    report.show(table, {"runs": arguments.runs, "ends": found}, width=200)


if __name__ == "__main__":
    main()
