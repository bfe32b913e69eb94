"""A job on three hosts with a poor network between them, and the same with one host cut off for a while.

    DBELIEF_DATA=... DBELIEF_HOSTNET=path/of/hostnet python benchmarks/network.py [--ways loopback,network,partition-3]

Host 1 runs the coordinator and a shard, host 2 a shard and a worker, host 3 a worker; hosts.py says what hostnet is.
Way "partition-K" takes the link of host K down for 15 s in the middle of the samples. A shard or worker that fails is
started again, as compose and Kubernetes do. A run is as it should be when every process ends with 0 in the end, none is
left, and the test accuracy is within 0.5 points of the run on loopback.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hosts import address, hosts, inside
from launched import Run, total_samples, wait_for
from rich.console import Console
from rich.table import Table

from dbelief.job import load_job

PARTS = (("ps-0", 1), ("ps-1", 2), ("worker-0", 2), ("worker-1", 3))
"""Who runs on which host; the coordinator on the first."""
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
    """Run the job once, on loopback or on the hosts; what came of it."""
    prefix = f"dbn{os.getpid() % 10_000}"
    with tempfile.TemporaryDirectory(prefix="network-") as folder:
        run = Run(Path(folder), load_job(job, fields).name)
        began = time.monotonic()
        if hostnet is None:
            row = follow(run, job, {**fields, "output": folder}, way, "")
        else:
            bad = ("--delay-ms", f"{DELAY_MS:g}", "--loss-pct", f"{LOSS_PCT:g}")
            with hosts(hostnet, prefix, HOSTS, RATE_MBIT, LIMIT_S + 60, *bad):
                row = follow(run, job, {**fields, "output": folder}, way, prefix)
        summary = run.summary()
        row |= {key: summary.get(key) for key in ("test_accuracy", "samples", "samples_per_replica", "reason")}
        row |= {key: value for key, value in summary.items() if re.search("lost|twice|died", key)}
        row |= {
            "way": way,
            "wall_s": round(time.monotonic() - began, 1),
            "files_left": len(list(run.temporary.iterdir())),
        }
        row["last_words"] = {
            name: (run.output(name) or [""])[-1] for name in ("coordinator", *(name for name, _ in PARTS))
        }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


class Member:
    """The coordinator, a shard or a worker, on its host."""

    def __init__(self, run: Run, name: str, arguments: list[str], prefix: list[str]) -> None:
        self.name = name
        self.again = 0
        self._begin = functools.partial(run.start, name, arguments, prefix)
        self.process = self._begin()

    def ended(self, coordinator: Member) -> bool:
        """Whether it has; started again where it failed while the coordinator runs."""
        code = self.process.poll()
        if code and coordinator.process.poll() is None and self.again < STARTS_AGAIN:
            self.again += 1
            self.process = self._begin()
            return False
        return code is not None


def follow(run: Run, job: Path, fields: dict[str, str], way: str, prefix: str) -> dict[str, Any]:
    """Start every role where it belongs, cut a host off if that is the way, and wait for their ends."""

    def on(host: int) -> list[str]:
        return inside(prefix, host) if prefix else []

    def at(host: int) -> str:
        return address(host) if prefix else "127.0.0.1"

    sets = [part for field, value in fields.items() for part in ("--set", f"{field}={value}")]
    ready = run.folder / "address"
    row: dict[str, Any] = {}
    total = total_samples(job, fields)
    members: list[Member] = []

    def ended() -> bool | None:
        """Look after all of them; whether all have ended."""
        running = [member for member in members if not member.ended(members[0])]
        return None if running else True

    def half() -> bool | None:
        return True if ended() or run.samples() >= total // 2 else None

    try:
        listen = ["--listen", f"{at(1)}:0", "--ready-file", str(ready)]
        members.append(Member(run, "coordinator", ["coordinator", str(job.absolute()), *sets, *listen], on(1)))
        wait_for(lambda: True if ready.exists() else None, "the coordinator", 60.0)
        for name, host in PARTS:
            role, number = name.split("-")
            arguments = [role, "--coordinator", ready.read_text(), "--number", number, "--name", name]
            arguments += ["--listen", f"{at(host)}:0"] if role == "ps" else []
            members.append(Member(run, name, arguments, on(host)))
        if way.startswith("partition-"):
            host = int(way.removeprefix("partition-"))
            wait_for(half, "half of the samples", LIMIT_S)
            row["cut_at"] = run.samples()
            link(prefix, host, "down")
            back_s = time.monotonic() + AWAY_S
            wait_for(lambda: ended() or (True if time.monotonic() > back_s else None), "the link", 2 * AWAY_S)
            link(prefix, host, "up")
        wait_for(ended, "the end of the job", LIMIT_S)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=Path(__file__).parents[1] / "examples" / "mnist.yaml")
    parser.add_argument("--hostnet", type=Path, default=os.environ.get("DBELIEF_HOSTNET"))
    parser.add_argument("--ways", default="loopback,network,partition-2,partition-3")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    arguments = parser.parse_args()
    if arguments.hostnet is None:
        print("network.py: left out, DBELIEF_HOSTNET names no program that makes hosts", file=sys.stderr)
        return
    fields = {"shards": "2", "replicas": "2", "snapshots.every_s": "5", "limits.epochs": str(arguments.epochs)}
    fields |= {"model": MODEL, **dict(item.split("=", 1) for item in arguments.set)}
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
    Console(stderr=True, width=160).print(table)
    print(json.dumps({"rate_mbit": RATE_MBIT, "delay_ms": DELAY_MS, "loss_pct": LOSS_PCT, "runs": rows}))
    raise SystemExit(1 if any(verdict(row, calm) for row in rows) else 0)


if __name__ == "__main__":
    main()
