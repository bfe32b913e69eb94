"""A table of very many rows on two shards: time to fill it, memory a row, and memory under traffic with eviction.

    python -m benchmarks.shards.table_size [--rows 100000000] [--width 16] [--batch 200000] [--minutes 10]

`dbelief run` with two shards and one worker, whose script has `dbelief.torch.Embedding` over the table (row-wise
Adagrad). In the first epoch each key comes once, so that the table has all rows after it; then keys are drawn by Zipf's
law (exponent 1.1) from 2^40, over an offset that drifts, so that new keys come all the time, and the table removes the
rows that were not pushed for longest (`evict: {lru}`, of a tenth more rows). Resident memory of both shards
(/proc/PID/status) is read every second. Overhead is what they have resident beyond key, row and state of each row, less
what they had at the start.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import yaml
from rich.table import Table

from benchmarks.harness import options, report, runs
from dbelief.errors import DbeliefError
from dbelief.monitor.status import JobLocation, get_status

BUCKETS = 64
FILL_S, LOOK_S, SETTLED = 7200.0, 1.0, 0.25
"""Limit of the fill; time between two looks; share of the traffic's time that does not count for its slope."""
GIB = 1 << 30
SCRIPT = """
import numpy as np
import torch

import dbelief

ROWS, BATCH = {rows}, {batch}
MIX, SPACE = np.uint64(0x9E3779B97F4A7C15), 1 << 40


class Rows(torch.nn.Module):
    def __init__(self, job):
        super().__init__()
        self.rows = dbelief.torch.Embedding(job, "rows")
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, keys):
        return (self.rows(keys).sum(1) * self.scale).mean()


with dbelief.join() as job:
    model, rng = Rows(job), np.random.default_rng(0)
    sync = dbelief.torch.Sync(job, model, torch.optim.SGD(model.parameters(), lr=0.0))
    for step, batch in enumerate(job.sampler(range(ROWS), batch_size=BATCH)):
        keys = np.asarray(batch, np.uint64)
        if step * BATCH >= ROWS:
            keys = (rng.zipf(1.1, BATCH).astype(np.uint64) + np.uint64(step * BATCH // 4)) % np.uint64(SPACE)
        loss = model(torch.from_numpy((keys * MIX).view(np.int64)))
        loss.backward()
        sync.step(loss, samples=len(batch))
"""


def job_of(rows: int, width: int, batch: int) -> dict[str, Any]:
    """The job file."""
    table = {"width": width, "rule": {"name": "row-adagrad", "rate": 0.05}, "buckets": BUCKETS}
    return {
        "name": "rows",
        "output": ".",
        "model": {"source": "script"},
        "data": {"source": "script", "train": rows},
        "strategy": {
            "name": "downpour",
            "batch": batch,
            "rule": {"name": "sgd", "rate": 0.0001},
            "warm_start": None,
        },
        "limits": {"epochs": 100_000},
        "shards": 2,
        "replicas": 1,
        "snapshots": {"every_s": None},
        "tables": {"rows": {**table, "evict": {"lru": rows + rows // 10}}},
    }


class Watch:
    """Resident memory of the shards of a run, and what its status says of the table."""

    def __init__(self, run: runs.Run) -> None:
        self._run = run
        self.looks: list[tuple[float, int]] = []

    def resident(self) -> int:
        """Bytes that both shards have resident now."""
        pids = [pid for pid, _ in self._run.members()["shard"]]
        now = 1024 * sum(runs.status_kib(pid, "VmRSS") for pid in pids)
        self.looks.append((time.monotonic(), now))
        return now

    def table(self) -> dict[str, Any]:
        """Figures of the table; empty before the job has one."""
        try:
            status = dict(get_status(JobLocation.of(str(self._run.run))))
        except DbeliefError:
            return {"samples": 0}  # it is not up yet
        tables = status.get("tables") or [{}]
        return {**tables[0], "samples": status["samples"]}


def measure(rows: int, width: int, batch: int, minutes: float) -> dict[str, Any]:
    """Fill the table, then let traffic through it."""
    with runs.temporary_run("rows") as run:
        (run.folder / "job.yaml").write_text(yaml.safe_dump(job_of(rows, width, batch)))
        (run.folder / "fill.py").write_text(SCRIPT.format(rows=rows, batch=batch))
        run.start("run", ["run", "--job", "job.yaml", "--workers", "1", "fill.py"])
        watch = Watch(run)
        runs.wait_for(lambda: watch.table().get("rows"), "the first rows", 120.0)
        first, began_s = watch.table(), time.monotonic()
        empty = watch.resident() - first["bytes"]

        def full() -> dict[str, Any] | None:
            time.sleep(LOOK_S)
            watch.resident()
            found = watch.table()
            return found if found.get("rows", 0) >= rows else None

        filled = runs.wait_for(full, "a table with all rows", FILL_S)
        fill_s, resident = time.monotonic() - began_s, watch.resident()
        report.progress({"filled": filled, "fill_s": fill_s, "resident": resident})
        traffic_s = time.monotonic()
        while time.monotonic() < traffic_s + 60 * minutes:
            time.sleep(LOOK_S)
            watch.resident()
        last = watch.table()
        used = 8 + 4 * (width + 1)
        later = [(at_s - traffic_s, size) for at_s, size in watch.looks if at_s >= traffic_s + 60 * minutes * SETTLED]
        times, sizes = ([one[part] for one in later] for part in (0, 1))
        slope = float(np.polyfit(times, sizes, 1)[0]) if len(later) > 2 else 0.0
        return {
            "rows": filled["rows"],
            "width": width,
            "fill_s": fill_s,
            "rows_per_s": (filled["rows"] - first["rows"]) / fill_s,
            "resident": resident,
            "overhead": (resident - empty) / filled["rows"] - used,
            "counted": filled["bytes"] / filled["rows"] - used,
            "minutes": minutes,
            "traffic_keys_per_s": (last["samples"] - filled["samples"]) / (60 * minutes) if minutes else 0.0,
            "evicted": last["evicted"],
            "rows_after": last["rows"],
            "most_resident": max(size for _, size in watch.looks),
            "slope_mib_per_min": 60 * slope / (1 << 20),
        }


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=200_000, help="keys of a step")
    parser.add_argument("--minutes", type=float, default=10.0, help="of traffic")
    arguments = parser.parse_args()
    row = measure(arguments.rows, arguments.width, arguments.batch, arguments.minutes)
    table = Table("rows", "fill, s", "rows/s", "resident", "overhead a row", "evicted", "most resident", "MiB/min")
    sizes = [f"{row[name] / GIB:.2f} GiB" for name in ("resident", "most_resident")]
    cells = [f"{row['rows']:,}", f"{row['fill_s']:.0f}", f"{row['rows_per_s']:,.0f}", sizes[0]]
    cells += [f"{row['overhead']:.1f} B", f"{row['evicted']:,}", sizes[1], f"{row['slope_mib_per_min']:+.1f}"]
    table.add_row(*cells)
    report.show(table, {"rows": [row]}, width=140)


if __name__ == "__main__":
    main()
