"""The cost of a simulation by its number of workers, as processes of `dbelief simulate`.

    python -m benchmarks.simulate.size [--workers 1000,10000,50000] [--for 1h] [--rounds 3]

The fleet: workers of one mini-batch a second that differ by 20 %, 1 % of them ten times slower, with links of 20 Mbit/s
and a mean life of two hours, and a server with four shards. Their job is Downpour with a push in 16 mini-batches. The
figures are of whole processes, with the start of Python and the compiled loop from its cache: seconds by the wall,
medians over rounds that alternate over the sizes, and the largest resident memory. All rounds of a size have to print
the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, runs
from benchmarks.harness.checkout import EXAMPLES
from benchmarks.harness.timing import interleaved
from dbelief.job.document.yaml_document import to_yaml

JOB = EXAMPLES / "digits.yaml"
FIELDS = {"strategy.n_push": 16, "strategy.n_fetch": 16, "deadlines.beat_s": 60, "limits.epochs": 10**6}
"""The job does not end before the simulated time."""


def fleet_of(workers: int) -> dict[str, Any]:
    """The fleet file's content."""
    own = {"step": "1s", "across": 0.2, "slow": {"share": 0.01, "factor": 10}, "link": "20Mbit", "latency": "20ms"}
    servers = {"name": "servers", "workers": 0, "shards": 4, "coordinator": True, "link": "10Gbit"}
    return {"groups": [{"name": "workers", "machines": workers, **own, "life": "2h", "returns": "5min"}, servers]}


def simulated(fleet: Path, until: str) -> dict[str, Any]:
    """One process: its seconds, its memory in bytes, and what it printed."""
    words = ["simulate", str(JOB), "--machines", str(fleet), "--for", until, "--json"]
    words += options.settings(FIELDS)
    began_s = time.monotonic()
    process = subprocess.Popen([*runs.COMMAND, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"dbelief simulate ended with {process.returncode}")
    return {"seconds": time.monotonic() - began_s, "memory": 1024 * used.ru_maxrss, "printed": printed}


def row_of(workers: int, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one size."""
    texts = {one["printed"] for one in found}
    outcome = json.loads(found[0]["printed"])
    return {
        "workers": workers,
        "seconds": round(statistics.median(one["seconds"] for one in found), 1),
        "memory_mb": round(max(one["memory"] for one in found) / 1e6),
        "events": outcome["events"],
        "failures": sum(outcome["failures"].values()),
        "equal": len(texts) == 1,
        "sha256": hashlib.sha256(found[0]["printed"]).hexdigest()[:16],
    }


def main() -> None:
    """Measure all sizes."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--workers", type=options.numbers, default="1000,10000,50000")
    parser.add_argument("--for", dest="until", default="1h", help="simulated time")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[int, list[dict[str, Any]]] = {workers: [] for workers in arguments.workers}
    with tempfile.TemporaryDirectory() as folder:
        for workers in arguments.workers:
            Path(folder, f"{workers}.yaml").write_text(to_yaml(fleet_of(workers)))
        simulated(Path(folder, f"{arguments.workers[0]}.yaml"), "1min")  # the loop is compiled
        for _, workers in interleaved(arguments.workers, arguments.rounds):
            found[workers].append(simulated(Path(folder, f"{workers}.yaml"), arguments.until))
    rows = [row_of(workers, some) for workers, some in found.items()]
    table = Table("workers", "seconds", "memory, MB", "events", "failures", "equal")
    for row in rows:
        table.add_row(
            *(f"{row[name]:,}" for name in ("workers", "seconds", "memory_mb", "events", "failures")), str(row["equal"])
        )
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
