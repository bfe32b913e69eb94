"""`scale: auto` beside each fixed number of workers, while workers die and come back every 30 seconds.

    python -m benchmarks.advise.auto_scaling [--counts 2,3,4,6,8] [--begin 2] [--most 8] [--seconds 300] [--seed 0]

A coordinator, a shard, and workers that this program starts as a launcher does, by a fork server: as many as the
coordinator wants. Each has an exponential life of mean 30 s, drawn from the seed, its number and its start
(churn_plan.py, plan "b"), dies by SIGKILL and is started again at once; so all numbers have the same plan. A worker
computes for 60 ms in a mini-batch, asleep, and all of a job read their samples from one disk, 2.5 ms each: more than
three bring little, and the model does not know of the disk.

The automatic job runs beside the one of each fixed number, at the same time: other load on the machine affects both.
`ratio` is its samples a second over those of the fixed number, and the least one that over the best number. `changes`
are those of the number, and `closest_s` is the shortest time between two.
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
from benchmarks.harness import options, report, runs
from dbelief.errors import RuntimeFailure
from dbelief.launch.forked_process import ForkedProcess, ForkServer
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.events import read_events

START_S, LOOK_S = 120.0, 0.2
COMPUTE_S, LIFE_S = 0.06, 30.0
ONE_DISK = '''
import fcntl
import time
from pathlib import Path

import numpy as np


class Shared:
    """Samples on one disk, which reads one at a time in 2.5 ms."""

    def __init__(self):
        self._disk = open(Path(__file__).with_name("disk"), "w")

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


class ScaledJob:
    """One job, whose workers this object starts and kills.

    Attributes
    ----------
    deaths
        Number of workers killed.
    """

    def __init__(
        self, run: runs.Run, server: ForkServer, count: int, scale: dict[str, int] | None, most: int, seed: int
    ) -> None:
        (run.folder / "samples.py").write_text(ONE_DISK)
        self._run, self._server, self._count = run, server, count
        _, self._member = run.coordinator(job_of(count, scale), START_S)
        run.start("ps", ["ps", *self._member])
        self._client = CoordinatorClient(self._member[1])
        self._plan = make_plan("b", [f"worker-{number}" for number in range(most)], str(seed), LIFE_S, 0, 0.0)
        self._workers: dict[str, ForkedProcess] = {}
        self._leaving: list[ForkedProcess] = []
        self._starts: Counter[str] = Counter()
        self._began: tuple[float, int] | None = None
        self._last = (0.0, 0)
        self.deaths = 0

    @property
    def trains(self) -> bool:
        """Whether samples were trained."""
        return self._began is not None

    def close(self) -> None:
        """End the workers."""
        self._client.close()
        for process in [*self._workers.values(), *self._leaving]:
            process.kill()
            process.wait()

    def step(self) -> None:
        """Start and kill what is due."""
        with contextlib.suppress(RuntimeFailure):
            status = self._client.call("Status", wire.StatusRequest(scales=True), 0.0)
            self._reach(status.wanted_replicas if status.HasField("wanted_replicas") else self._count)
            self._last = time.monotonic(), status.samples
            self._began = self._began or (self._last if status.samples else None)
        if self._began is None:
            return
        for name in self._plan.due(time.monotonic() - self._began[0], self._starts):
            if name in self._workers and self._workers[name].poll() is None:
                self._workers[name].kill()
                self._workers[name].wait()
                self.deaths += 1
        for name, process in list(self._workers.items()):
            if process.poll() is not None:
                self._start(name)

    def _reach(self, wanted: int) -> None:
        for name in [f"worker-{number}" for number in range(wanted)]:
            if name not in self._workers:
                self._start(name)
        for name in [name for name in self._workers if int(name.removeprefix("worker-")) >= wanted]:
            leaving = self._workers.pop(name)
            leaving.send_signal(signal.SIGTERM)
            self._leaving.append(leaving)

    def _start(self, name: str) -> None:
        os.environ[runs.MARK] = self._run.mark  # the server passes the environment on
        words = ["worker", *self._member, "--number", name.removeprefix("worker-"), "--compute-wait", str(COMPUTE_S)]
        self._workers[name] = self._server.start([*words, "--name", name], self._run.folder / f"{name}.log")
        del os.environ[runs.MARK]
        self._starts[name] += 1

    def begin(self) -> None:
        """Measure from now on."""
        self._began = self._last

    def samples_per_s(self) -> float:
        """Since `begin`."""
        assert self._began is not None
        return (self._last[1] - self._began[1]) / (self._last[0] - self._began[0])

    def changes(self) -> list[dict[str, Any]]:
        """Events of changes of the number."""
        return [event for event in read_events(self._run.run / "events.jsonl") if event["event"] == "workers_scaled"]


def pair(server: ForkServer, count: int, begin: int, most: int, seconds: float, seed: int) -> dict[str, Any]:
    """A fixed number and the automatic one at the same time."""
    with contextlib.ExitStack() as stack:
        jobs = []
        for number, scale in ((count, None), (begin, {"min": 1, "max": most})):
            run = stack.enter_context(runs.temporary_run("scaled"))
            jobs.append(stack.enter_context(closing(ScaledJob(run, server, number, scale, most, seed))))
        until_s, measures = time.monotonic() + START_S, False
        while time.monotonic() < until_s:
            for job in jobs:
                job.step()
            if not measures and all(job.trains for job in jobs):
                measures, until_s = True, time.monotonic() + seconds
                for job in jobs:
                    job.begin()
            time.sleep(LOOK_S)
        if not measures:
            raise SystemExit(f"no sample was trained within {START_S:g} s")
        fixed, auto = (job.samples_per_s() for job in jobs)
        changes = jobs[1].changes()
        times = [event["elapsed_s"] for event in changes]
        return {
            "workers": count,
            "fixed": round(fixed, 1),
            "auto": round(auto, 1),
            "ratio": round(auto / fixed, 3),
            "deaths": jobs[0].deaths + jobs[1].deaths,
            "changes": "; ".join(f"{event['from']} to {event['to']} ({event['why']})" for event in changes),
            "count": len(changes),
            "closest_s": round(min((b - a for a, b in itertools.pairwise(times)), default=0.0), 1),
        }


def main() -> None:
    """Measure all fixed numbers, each beside the automatic one."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--counts", type=options.ascending, default=[2, 3, 4, 6, 8])
    parser.add_argument("--begin", type=int, default=2)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["DBELIEF_INSECURE"] = "1"
    rows = []
    with ForkServer() as server:
        for count in arguments.counts:
            rows.append(pair(server, count, arguments.begin, arguments.most, arguments.seconds, arguments.seed))
            report.progress(rows[-1])
    table = Table("workers", "samples/s", "auto, at the same time", "ratio", "changes", "deaths")
    for row in rows:
        numbers = (f"{row['fixed']:.0f}", f"{row['auto']:.0f}", f"{row['ratio']:.2f}")
        table.add_row(str(row["workers"]), *numbers, row["changes"], str(row["deaths"]))
    report.show(table, {"rows": rows, "least": min(row["ratio"] for row in rows)})


if __name__ == "__main__":
    main()
