"""`scale: auto` beside each fixed number of workers, while workers die and come back every 30 seconds.

    python -m benchmarks.advise.auto_scaling [--counts 2,3,4,6,8] [--begin 2] [--most 8] [--seconds 300] [--seed 0]

A coordinator, a shard, and workers that this program starts as a launcher does: as many as the coordinator wants. Each
has an exponential life of mean 30 s, drawn from the seed, its number and its start (churn_plan.py, plan "b"), dies by
SIGKILL and is started again at once; so all numbers have the same plan. A worker computes for 60 ms in a mini-batch,
asleep, and all read their samples from one disk, 2.5 ms each: more than three bring little, and the model does not know
of the disk. Runs are in turn, the automatic one in the middle.

`share` is the automatic run's samples a second, over those of the best fixed number; `changes` how often the number was
changed, and `closest_s` the shortest time between two changes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections import Counter
from contextlib import closing
from typing import Any

from rich.table import Table

from benchmarks.faults.churn_plan import make_plan
from benchmarks.faults.supervisor import Supervisor, Unit
from benchmarks.harness import options, report, runs
from dbelief.errors import RuntimeFailure
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.events import read_events

START_S, LOOK_S = 120.0, 0.2
COMPUTE_S, LIFE_S = 0.06, 30.0
AUTO = "auto"
ONE_DISK = '''
import fcntl
import time

import numpy as np


class Shared:
    """Samples on one disk, which reads one at a time in 2.5 ms."""

    def __init__(self):
        self._disk = open("disk", "w")

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        fcntl.flock(self._disk, fcntl.LOCK_EX)
        try:
            time.sleep(0.0025)
        finally:
            fcntl.flock(self._disk, fcntl.LOCK_UN)
        return np.full(16, index % 7, np.float32), index % 10
'''


def job_of(count: int, scale: dict[str, int] | None) -> dict[str, Any]:
    """The job file."""
    return {
        "name": "scaled",
        "model": {"layers": [{"dense": 10}], "loss": "softmax_cross_entropy"},
        "data": {"source": "python", "train": "samples.py:Shared", "classes": 10, "unit": 32},
        "strategy": {
            "name": "downpour",
            "batch": 8,
            "lease": 64,
            "rule": {"name": "sgd", "rate": 0.001},
            "warm_start": None,
        },
        "limits": {"wall_s": 36_000},
        "evaluate": {"every": 10**12, "keep": "last"},
        "deadlines": {"beat_s": 2},
        "replicas": count,
        "scale": scale,
    }


class Workers:
    """The workers of a run, as many as are wanted; a launcher's part."""

    def __init__(self, run: runs.Run, member: list[str]) -> None:
        self._run, self._member = run, member
        self.supervisor = Supervisor()

    def reach(self, wanted: int) -> None:
        """Start those that are missing, and have those that are too many leave."""
        units = self.supervisor.units
        for number in range(wanted):
            name = f"worker-{number}"
            if name not in units:
                words = ["worker", *self._member, "--number", str(number), "--compute-wait", str(COMPUTE_S)]
                command = [*runs.COMMAND, *words, "--name", name]
                self.supervisor.add(Unit(self._run, name, "worker", command, ends=False))
        for name in [name for name in units if int(name.removeprefix("worker-")) >= wanted]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(units.pop(name).process.pid, signal.SIGTERM)


def one(count: int, scale: dict[str, int] | None, most: int, seconds: float, seed: int) -> dict[str, Any]:
    """One run: its samples a second, and its changes."""
    with runs.temporary_run("scaled") as run:
        (run.folder / "samples.py").write_text(ONE_DISK)
        _, member = run.coordinator(job_of(count, scale), START_S)
        run.start("ps", ["ps", *member])
        workers = Workers(run, member)
        plan = make_plan("b", [f"worker-{number}" for number in range(most)], str(seed), LIFE_S, 0, seconds)
        began: tuple[float, int] | None = None
        last = began
        with closing(CoordinatorClient(member[1])) as client:
            until_s = time.monotonic() + START_S
            while time.monotonic() < until_s:
                with contextlib.suppress(RuntimeFailure):
                    status = client.call("Status", wire.StatusRequest(scales=True))
                    workers.reach(status.wanted_replicas if status.HasField("wanted_replicas") else count)
                    last = time.monotonic(), status.samples
                    if began is None and status.samples:
                        began, until_s = last, time.monotonic() + seconds
                workers.supervisor.look()
                if began is not None:
                    names = workers.supervisor.units
                    starts = Counter({name: unit.starts for name, unit in names.items()})
                    due = plan.due(time.monotonic() - began[0], starts)
                    workers.supervisor.kill([name for name in due if name in names], plan.away_s)
                time.sleep(LOOK_S)
        if began is None or last is None:
            raise SystemExit(f"no sample was trained within {START_S:g} s")
        events = list(read_events(run.run / "events.jsonl"))
        changes = [event for event in events if event["event"] == "workers_scaled"]
        times = [event["elapsed_s"] for event in changes]
        return {
            "workers": AUTO if scale else count,
            "samples_per_s": round((last[1] - began[1]) / (last[0] - began[0]), 1),
            "deaths": len(workers.supervisor.deaths),
            "changes": [f"{event['from']} to {event['to']} ({event['why']})" for event in changes],
            "closest_s": round(min((b - a for a, b in itertools.pairwise(times)), default=0.0), 1),
        }


def main() -> None:
    """Measure all fixed numbers, and the automatic one."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--counts", type=options.ascending, default=[2, 3, 4, 6, 8])
    parser.add_argument("--begin", type=int, default=2)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["DBELIEF_INSECURE"] = "1"
    cases: list[int | str] = list(arguments.counts)
    cases.insert(len(cases) // 2, AUTO)
    rows = []
    for case in cases:
        count, scale = (arguments.begin, {"min": 1, "max": arguments.most}) if case == AUTO else (int(case), None)
        rows.append(one(count, scale, arguments.most, arguments.seconds, arguments.seed))
        report.progress(rows[-1])
    best = max(row["samples_per_s"] for row in rows if row["workers"] != AUTO)
    table = Table("workers", "samples/s", "over the best", "deaths", "changes")
    for row in rows:
        row["share"] = round(row["samples_per_s"] / best, 3)
        shown = "; ".join(row["changes"])
        table.add_row(
            str(row["workers"]), f"{row['samples_per_s']:.0f}", f"{row['share']:.2f}", str(row["deaths"]), shown
        )
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
