"""Cost of each role: processor time until a job trains, threads and memory then, time of a mini-batch after that.

    python -m benchmarks.startup.role_costs [--runs 5] [--seconds 20] [--no-shared-memory]

A coordinator, two shards and one worker train handwritten digits (64-32-10, mini-batches of 16, a fetch and a push for
each). Processor time, user and system, is read from /proc/PID/stat: when the job has begun to train, and again after
some seconds; mini-batches are counted by the coordinator. Threads and resident memory of one process are read when the
job has begun. Medians over the runs; in the printed JSON, times too are those of one shard.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from contextlib import closing
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, runs
from dbelief.monitor.status import to_dict
from dbelief.rpc.client.coordinator_client import CoordinatorClient

JOB: dict[str, Any] = {
    "name": "costs",
    "model": {"layers": [{"dense": 32}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"},
    "data": {"source": "digits"},
    "strategy": {"name": "downpour", "batch": 16, "rule": {"name": "adagrad", "rate": 0.03}, "warm_start": None},
    "evaluate": {"every": None},
    "limits": {"samples": 1_000_000_000},
    "shards": 2,
    "replicas": 1,
}
BATCH = 16
ROLES = ("coordinator", "ps", "worker")
DEADLINE_S = 120.0


def held(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Threads of a process, and its resident memory in MiB."""
    return float(runs.status_kib(process.pid, "Threads")), runs.status_kib(process.pid, "VmRSS") / 1024


def measure(seconds: float, more: list[str]) -> dict[str, tuple[float, ...]]:
    """Of each role: seconds until the job trains, milliseconds a mini-batch, threads and MiB.

    Times are those of both shards together, threads and memory those of one.
    """
    with runs.temporary_run("costs") as run:
        coordinator, address = run.coordinator(JOB, DEADLINE_S)
        of = {
            "coordinator": [coordinator],
            "ps": [run.start(f"ps-{number}", ["ps", *address, *more]) for number in range(2)],
            "worker": [run.start("worker", ["worker", *address, *more])],
        }
        with closing(CoordinatorClient(address[1])) as client:

            def samples() -> int | None:
                """The samples so far, once there are some."""
                return int(to_dict(client.status())["samples"]) or None

            def spent_s() -> dict[str, float]:
                return {role: runs.processor_s(of[role]) for role in ROLES}

            runs.wait_for(samples, "training", DEADLINE_S)
            begun, holds = spent_s(), {role: held(of[role][0]) for role in ROLES}
            time.sleep(seconds / 4)
            first, before = samples() or 0, spent_s()
            time.sleep(seconds)
            last, after = samples() or 0, spent_s()
    steps = (last - first) / BATCH
    return {role: (begun[role], 1000 * (after[role] - before[role]) / steps, *holds[role]) for role in ROLES}


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-shared-memory", action="store_true")
    arguments = parser.parse_args()
    more = ["--no-shared-memory"] * arguments.no_shared_memory
    rows = [measure(arguments.seconds, more) for _ in range(arguments.runs)]
    table = Table("role", "until it trains, s", "a mini-batch, ms", "threads", "MiB", box=None)
    roles = []
    for role in ROLES:
        begun, step, threads, mib = (statistics.median(row[role][index] for row in rows) for index in range(4))
        figures = f"{begun:.2f}", f"{step:.2f}", f"{threads:.0f}", f"{mib:.1f}"
        table.add_row("two shards" if role == "ps" else role, *figures)
        count = 2 if role == "ps" else 1
        each = {"begun_s": begun / count, "step_ms": step / count, "threads": round(threads), "mib": mib}
        roles.append({"role": role, **each})
    report.show(table, {"roles": roles})


if __name__ == "__main__":
    main()
