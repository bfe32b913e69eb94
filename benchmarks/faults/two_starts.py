"""Two starts of one job: how many of them run, where the second comes some time after the first.

    python -m benchmarks.faults.two_starts [--delays 0,0.05,0.2,0.5,1] [--tries 20] [--kinds new,again,resumed]

Kinds: `new`, the first run of its name; `again`, an earlier run of that name is there; `resumed`, both starts are
`--resume` of it. A try is right where one of the two runs to its end (exit code 0), the other is refused (exit code 2,
"a run is in progress there"), and the folder has the files of one run. Right tries, and how many of them the first
start has won, are counted. The job trains for three seconds, so that it goes on while the second starts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.harness import options, report
from benchmarks.harness.runs import COMMAND

JOB = """name: same
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 20, rule: {name: adagrad, rate: 0.05}, warm_start: null}
evaluate: {every: null}
limits: {wall_s: 3}
shards: 1
replicas: 1
"""
REFUSED = "a run is in progress there"
DEADLINE_S = 120.0


class Ended(NamedTuple):
    """Exit code and last line of a start."""

    code: int
    line: str


def start(folder: Path, resume: bool) -> subprocess.Popen[str]:
    command = [*COMMAND, "train", "job.yaml", "--quiet", *["--resume"] * resume]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def end_of(process: subprocess.Popen[str]) -> Ended:
    lines = process.communicate(timeout=DEADLINE_S)[1].splitlines()
    return Ended(process.returncode, lines[-1] if lines else "")


def one_try(folder: Path, kind: str, delay_s: float) -> tuple[list[Ended], str]:
    """How both ended, and what is wrong with it; empty: nothing."""
    resume = kind == "resumed"
    first = start(folder, resume)
    time.sleep(delay_s)
    ends = [end_of(process) for process in (first, start(folder, resume))]
    if sorted(end.code for end in ends) != [0, 2] or not any(REFUSED in end.line for end in ends if end.code == 2):
        return ends, f"exit codes {[end.code for end in ends]}: {[end.line for end in ends]}"
    wanted = {"same", "same.1"} if kind == "again" else {"same"}
    if (found := {path.name for path in (folder / "runs").iterdir()}) != wanted:
        return ends, f"folders {sorted(found)}"
    coordinators = (folder / "runs/same/logs/coordinator.log").read_text().count(" leader epoch ")
    if coordinators != 1 + resume:
        return ends, f"{coordinators} coordinators wrote into one log"
    if json.loads((folder / "runs/same/summary.json").read_text())["state"] != "done":
        return ends, "the summary is not that of a run that is done"
    return ends, ""


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--delays", type=options.words, default="0,0.05,0.2,0.5,1")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--kinds", type=options.words, default="new,again,resumed")
    arguments = parser.parse_args()
    table = Table("starts", "delay, s", "tries", "one runs, one is refused", "the first one runs")
    wrong = 0
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dbelief-") as name:
        earlier = Path(name) / "earlier"
        earlier.mkdir()
        (earlier / "job.yaml").write_text(JOB)
        assert end_of(start(earlier, resume=False)).code == 0
        for kind in arguments.kinds:
            delays_s = [float(delay) for delay in arguments.delays]
            rights, firsts = [], []
            for delay in arguments.delays:
                right = first = 0
                for number in range(arguments.tries):
                    folder = Path(name) / "try"
                    shutil.copytree(earlier, folder)
                    if kind == "new":
                        shutil.rmtree(folder / "runs")
                    ends, what = one_try(folder, kind, float(delay))
                    right, first = right + (not what), first + (ends[0].code == 0)
                    if what:
                        print(f"{kind}, {delay} s, try {number + 1}: {what}", file=sys.stderr, flush=True)
                    shutil.rmtree(folder)
                table.add_row(kind, delay, str(arguments.tries), str(right), str(first))
                wrong += arguments.tries - right
                rights.append(right)
                firsts.append(first)
            tries = arguments.tries * len(delays_s)
            counts = {"right": sum(rights), "right_each": rights, "first_each": firsts}
            found.append({"kind": kind, "delays_s": delays_s, "tries": tries, **counts})
    report.show(table, {"starts": found})
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
