"""Processor time of each role: until a job trains, and for each mini-batch of a small model after that.

    python benchmarks/role_costs.py [--runs 5] [--seconds 20] [--no-shared-memory]

A coordinator, two shards and one worker train handwritten digits (64-32-10, mini-batches of 16, a fetch and a push for
each). Processor time, user and system, is read from /proc/PID/stat: when the job has begun to train, and again after
some seconds; mini-batches are counted by the coordinator. Medians over the runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from launched import COMMAND, wait_for
from rich.console import Console
from rich.table import Table

from dbelief.monitor.status import to_dict
from dbelief.rpc.client.coordinator_client import CoordinatorClient

JOB = """
name: costs
model: {layers: [{dense: 32}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}, warm_start: null}
evaluate: {every: null}
limits: {samples: 1000000000}
shards: 2
replicas: 1
"""
BATCH = 16
ROLES = ("coordinator", "ps", "worker")
DEADLINE_S = 120.0


def processor_s(process: subprocess.Popen[bytes]) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(folder: Path, seconds: float, more: list[str]) -> dict[str, tuple[float, float]]:
    """Of each role: seconds until the job trains, and milliseconds a mini-batch; both shards together."""
    (folder / "job.yaml").write_text(JOB)
    ready = folder / "address"
    with ExitStack() as started:

        def start(role: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [*COMMAND, role, *arguments]
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        of: dict[str, list[subprocess.Popen[bytes]]] = {}
        of["coordinator"] = [start("coordinator", "job.yaml", "--listen", "127.0.0.1:0", "--ready-file", str(ready))]
        wait_for(lambda: ready.exists() or None, "the coordinator", DEADLINE_S)
        to = ["--coordinator", ready.read_text().strip()]
        of["ps"] = [start("ps", *to, *more) for _ in range(2)]
        of["worker"] = [start("worker", *to, *more)]
        with closing(CoordinatorClient(to[1])) as client:

            def samples() -> int | None:
                """The samples so far, once there are some."""
                return int(to_dict(client.status())["samples"]) or None

            wait_for(samples, "training", DEADLINE_S)
            begun = {role: sum(map(processor_s, of[role])) for role in ROLES}
            time.sleep(seconds / 4)
            first, before = samples() or 0, {role: sum(map(processor_s, of[role])) for role in ROLES}
            time.sleep(seconds)
            last, after = samples() or 0, {role: sum(map(processor_s, of[role])) for role in ROLES}
    steps = (last - first) / BATCH
    return {role: (begun[role], 1000 * (after[role] - before[role]) / steps) for role in ROLES}


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-shared-memory", action="store_true")
    arguments = parser.parse_args()
    more = ["--no-shared-memory"] * arguments.no_shared_memory
    rows = []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory(prefix="role-costs-") as folder:
            rows.append(run(Path(folder), arguments.seconds, more))
    table = Table("role", "until it trains, s", "a mini-batch, ms", box=None)
    for role in ROLES:
        begun, step = (statistics.median(row[role][index] for row in rows) for index in range(2))
        table.add_row("two shards" if role == "ps" else role, f"{begun:.2f}", f"{step:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
