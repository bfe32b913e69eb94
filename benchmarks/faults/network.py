"""A job on three hosts with a poor network between them, and the same with one host cut off for a while.

    DBELIEF_DATA=... DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.faults.network
        [--ways loopback,network,partition-3]

Host 1 runs the coordinator and a shard, host 2 a shard and a worker, host 3 a worker (hostnet: harness/hosts.py).
Way "partition-K" takes the link of host K down for 15 s in the middle of the samples. A shard or worker that fails is
started again, as compose and Kubernetes do. A run passes when every process ends with 0 in the end, none is left, and
the test accuracy is within 0.5 points of the run on loopback.
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, hosts, options, report, runs
from dbelief.job import load_job

PARTS = (("ps-0", 1), ("ps-1", 2), ("worker-0", 2), ("worker-1", 3))
"""Host of each process; the coordinator is on the first."""
HOSTS = 3
RATE_MBIT, DELAY_MS, LOSS_PCT = 200.0, 5.0, 1.0
AWAY_S = 15.0
POINTS = 0.5
LIMIT_S = 600.0
STARTS_AGAIN = 3
MODEL = '{"layers": [{"dense": 64}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"}'


def link(prefix: str, host: int, state: str) -> None:
    subprocess.run(["ip", "-n", f"{prefix}h{host}", "link", "set", "eth0", state], check=True)


def one(job: Path, fields: dict[str, str], way: str, hostnet: Path | None) -> dict[str, Any]:
    """Run the job once, on loopback or on the hosts; its figures."""
    prefix = f"dbn{os.getpid() % 10_000}"
    with runs.temporary_run(load_job(job, fields).name) as run:
        fields = {**fields, "output": str(run.folder)}
        began = time.monotonic()
        if hostnet is None:
            row = follow(run, job, fields, way, "")
        else:
            bad = ("--delay-ms", f"{DELAY_MS:g}", "--loss-pct", f"{LOSS_PCT:g}")
            with hosts.network(hostnet, prefix, HOSTS, RATE_MBIT, LIMIT_S + 60, *bad):
                row = follow(run, job, fields, way, prefix)
        row |= run.figures()
        row |= {
            "way": way,
            "wall_s": round(time.monotonic() - began, 1),
            "files_left": len(list(run.temporary.iterdir())),
        }
        row["last_words"] = {
            name: (run.output(name) or [""])[-1] for name in ("coordinator", *(name for name, _ in PARTS))
        }
    report.progress(row)
    return row


class Member:
    """The coordinator, a shard or a worker, on its host."""

    def __init__(self, run: runs.Run, name: str, arguments: list[str], prefix: list[str]) -> None:
        self.name = name
        self.again = 0
        self._begin = functools.partial(run.start, name, arguments, prefix)
        self.process = self._begin()

    def ended(self, coordinator: Member) -> bool:
        """Whether its process ended; it is started again where it failed while the coordinator runs."""
        code = self.process.poll()
        if code and coordinator.process.poll() is None and self.again < STARTS_AGAIN:
            self.again += 1
            self.process = self._begin()
            return False
        return code is not None


def follow(run: runs.Run, job: Path, fields: dict[str, str], way: str, prefix: str) -> dict[str, Any]:
    """Start every role on its host, cut a host off where the way says so, and wait for all processes to end."""

    def on(host: int) -> list[str]:
        return hosts.inside(prefix, host) if prefix else []

    def at(host: int) -> str:
        return hosts.address(host) if prefix else "127.0.0.1"

    ready = run.folder / "address"
    row: dict[str, Any] = {}
    total = runs.total_samples(job, fields)
    members: list[Member] = []

    def ended() -> bool | None:
        """True when all members have ended."""
        running = [member for member in members if not member.ended(members[0])]
        return None if running else True

    def half() -> bool | None:
        return True if ended() or run.samples() >= total // 2 else None

    try:
        listen = [*options.settings(fields), "--listen", f"{at(1)}:0", "--ready-file", str(ready)]
        members.append(Member(run, "coordinator", ["coordinator", str(job.absolute()), *listen], on(1)))
        runs.wait_for(lambda: ready.exists() or None, "the coordinator", 60.0)
        for name, host in PARTS:
            role, number = name.split("-")
            arguments = [role, "--coordinator", ready.read_text(), "--number", number, "--name", name]
            arguments += ["--listen", f"{at(host)}:0"] if role == "ps" else []
            members.append(Member(run, name, arguments, on(host)))
        if way.startswith("partition-"):
            host = int(way.removeprefix("partition-"))
            runs.wait_for(half, "half of the samples", LIMIT_S)
            row["cut_at"] = run.samples()
            link(prefix, host, "down")
            back_s = time.monotonic() + AWAY_S
            runs.wait_for(lambda: ended() or (True if time.monotonic() > back_s else None), "the link", 2 * AWAY_S)
            link(prefix, host, "up")
        runs.wait_for(ended, "the end of the job", LIMIT_S)
    except TimeoutError as error:
        row["trouble"] = str(error)
    finally:
        row["codes"] = {member.name: member.process.poll() for member in members}
        row["started_again"] = {member.name: member.again for member in members if member.again}
        row["left"] = run.end()
    return row


def verdict(row: dict[str, Any], calm: float | None) -> str:
    """What is wrong with a run; "" where nothing is."""
    wrong = [f"{name} ended with {code}" for name, code in row["codes"].items() if code != 0]
    if "trouble" in row:
        wrong.append(row["trouble"])
    if row["left"]:
        wrong.append(f"{len(row['left'])} processes left")
    if row["test_accuracy"] is None:
        wrong.append("no test accuracy")
    elif calm is not None and abs(100 * row["test_accuracy"] - calm) > POINTS:
        wrong.append(f"{100 * row['test_accuracy'] - calm:+.2f} points")
    return ", ".join(wrong)


def main() -> None:
    parser = options.new_parser(__doc__)
    options.add_job(parser, checkout.EXAMPLES / "mnist.yaml")
    hosts.add_hostnet(parser)
    parser.add_argument("--ways", default="loopback,network,partition-2,partition-3")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    if hosts.left_out(__file__, arguments.hostnet):
        return
    os.environ["DBELIEF_INSECURE"] = "1"  # the hosts' network reaches nothing else
    fields = {"shards": "2", "replicas": "2", "snapshots.every_s": "5", "limits.epochs": str(arguments.epochs)}
    fields |= {"model": MODEL, **options.fields_of(arguments)}
    ways = arguments.ways.split(",")
    rows = [one(arguments.job, fields, way, None if way == "loopback" else arguments.hostnet) for way in ways]
    calm = next((100 * row["test_accuracy"] for row in rows if row["way"] == "loopback" and row["test_accuracy"]), None)
    title = f"{RATE_MBIT:g} Mbit/s, {DELAY_MS:g} ms, {LOSS_PCT:g} % loss"
    table = Table("way", "test accuracy", "wall s", "members lost", "started again", "wrong", title=title)
    for row in rows:
        accuracy = "" if row["test_accuracy"] is None else f"{100 * row['test_accuracy']:.2f}"
        wrong = verdict(row, calm)
        again = " ".join(f"{name} {times}" for name, times in row["started_again"].items())
        table.add_row(row["way"], accuracy, f"{row['wall_s']:.0f}", str(row.get("members_lost", "")), again, wrong)
    report.show(table, {"rate_mbit": RATE_MBIT, "delay_ms": DELAY_MS, "loss_pct": LOSS_PCT, "runs": rows}, width=160)
    raise SystemExit(1 if any(verdict(row, calm) for row in rows) else 0)


if __name__ == "__main__":
    main()
