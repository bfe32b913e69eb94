"""A long job with workers that join and leave: growth of its processes' memory, and resources that are left behind.

    python -m benchmarks.faults.soak [--minutes 20] [--workers 6] [--parameters 300k] [--seed 0]

A coordinator, two shards with a follower each, and up to six workers at a time, each a process of its own with a loop
of its own: it pulls and pushes for a while, by a codec and over a transport (shared memory or TCP) drawn for it, and
then leaves, or is killed. Another one is started in its place after a pause.

Every few seconds each process of the job is sampled: its resident memory without shared memory, and the anonymous part
of that (no library's pages); its open files, its threads; and /dev/shm. Reported are, for each process, the slope of a
straight line through either over the last three quarters of the time, as a share of its mean; and the numbers of files,
threads and blocks at the end beside a quarter in.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import checkout, options, report, runs
from dbelief.job.wire import Wire
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.client import Client
from dbelief.training.session import JobContext, Session

LIMIT_S = 60.0
LOOK_S = 5.0
STAYS_S = 15.0, 90.0
AWAY_S = 0.5, 10.0
SETTLING = 0.25
"""Share of the time that is not counted: caches fill, and each codec is used for the first time."""
_FIELDS = ("RssAnon", "RssFile", "Threads")
ROLES = ("coordinator", "leader", "follower")
WIRES: tuple[dict[str, Any], ...] = (
    {"push": "fp32", "pull": "fp32"},
    {"push": "fp16", "pull": "fp16"},
    {"push": "bf16", "pull": "bf16"},
    {"push": "one-bit", "pull": "bf16"},
    {"push": {"name": "threshold", "tau": 0.01}, "pull": "fp32"},
)


def work(address: str, which: int, shares: bool, seed: int) -> None:
    """Pull and push until SIGTERM, then leave."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    task = JobContext.fetch(address, LIMIT_S)
    job = task.job.model_copy(update={"wire": Wire.model_validate(WIRES[which])})
    session = Session.open(dataclasses.replace(task, job=job), wire.ROLE_CLIENT, shares_memory=shares)
    client, rng = Client(session), np.random.default_rng(seed)
    gradient = rng.standard_normal(client.pull()["w"].size, dtype=np.float32)
    while not stop.is_set() and not client.over:
        pulled = client.pull()["w"]
        client.push({"w": gradient * np.float32(0.001) + 0.001 * pulled})
        stop.wait(0.01)
    client.close()


class Swarm:
    """Workers that join and leave."""

    def __init__(self, address: str, count: int, folder: Path, seed: int) -> None:
        self._address, self._folder = address, folder
        self._rng = random.Random(seed)
        self._slots: list[tuple[subprocess.Popen[bytes] | None, float, bool]] = [(None, 0.0, False)] * count
        self._logs: dict[int, Path] = {}
        self.started = self.killed = 0
        self.failed: list[str] = []

    def look(self) -> None:
        """Start and end the workers that are due."""
        now_s = time.monotonic()
        for number, (process, until_s, kills) in enumerate(self._slots):
            if process is not None and process.poll() is not None:
                if process.returncode not in (0, -signal.SIGKILL):
                    words = self._logs[process.pid].read_text()[-400:]
                    self.failed.append(f"a worker ended with {process.returncode}: {words}")
                self._slots[number] = None, now_s + self._rng.uniform(*AWAY_S), False
            elif process is None and now_s >= until_s:
                self._slots[number] = self._start(), now_s + self._rng.uniform(*STAYS_S), self._rng.random() < 0.3
            elif process is not None and now_s >= until_s:
                process.send_signal(signal.SIGKILL if kills else signal.SIGTERM)
                self.killed += kills
                self._slots[number] = process, now_s + LIMIT_S, True  # the deadline of leaving

    def _start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        drawn = [self._rng.randrange(len(WIRES)), int(self._rng.random() < 0.6), self._rng.randrange(2**31)]
        words = [*checkout.command(__file__), "--work", self._address, *map(str, drawn)]
        log = self._folder / f"worker-{self.started}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(words, cwd=checkout.ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._logs[process.pid] = log
        return process

    def end(self) -> None:
        """Let all workers leave."""
        running = [process for process, _, _ in self._slots if process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def following(address: str) -> set[int]:
    """Processes of the shards' followers."""
    client = CoordinatorClient(address)
    try:
        members = client.call("Status", wire.StatusRequest()).members
        return {int(member.name.rpartition(":")[2]) for member in members if member.state == "following"}
    finally:
        client.close()


def _role(pid: int, who: str, followers: set[int]) -> str:
    if who == "coordinator":
        return who
    return "follower" if pid in followers else "leader"


def seen(pid: int) -> dict[str, int]:
    """Memory, files and threads of a process."""
    own, libraries, threads = (runs.status_kib(pid, name) for name in _FIELDS)
    return {
        "resident_kib": own + libraries,
        "own_kib": own,
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": threads,
    }


def measure(minutes: float, workers: int, parameters: int, seed: int) -> dict[str, Any]:
    """All figures."""
    with runs.temporary_run("soak") as run:
        job = run.own_loops(parameters, {"name": "adagrad", "rate": 0.01})
        coordinator, address = run.coordinator({**job, "shards": 2, "replication": 2}, LIMIT_S)
        shards = {f"ps-{n}": run.start(f"ps-{n}", ["ps", *address]) for n in range(4)}
        swarm = Swarm(address[1], workers, run.folder, seed)
        looks: list[dict[str, dict[str, int]]] = []
        try:
            until_s = time.monotonic() + 60 * minutes
            looked_s = time.monotonic()
            while time.monotonic() < until_s and coordinator.poll() is None:
                swarm.look()
                if time.monotonic() - looked_s >= LOOK_S:
                    looked_s = time.monotonic()
                    watched = {"coordinator": coordinator, **shards}
                    looks.append({who: seen(process.pid) for who, process in watched.items()})
                    looks[-1]["/dev/shm"] = {"blocks": len(list(Path("/dev/shm").glob("dbelief-*")))}
                time.sleep(0.1)
            followers = following(address[1]) if coordinator.poll() is None else set()
        finally:
            swarm.end()
            coordinator.send_signal(signal.SIGTERM)
            left = run.end()
        status = run.summary()
        blocks = len(list(Path("/dev/shm").glob("dbelief-*")))
    return {
        "minutes": minutes,
        "workers": workers,
        "started": swarm.started,
        "killed": swarm.killed,
        "failed": swarm.failed,
        "pushes": status.get("pushes"),
        "pushes_lost": status.get("pushes_lost"),
        "processes": sorted(
            (
                {"process": _role(process.pid, who, followers), **_course(looks, who)}
                for who, process in (("coordinator", coordinator), *shards.items())
            ),
            key=lambda row: ROLES.index(row["process"]),
        ),
        "most_blocks": max(look["/dev/shm"]["blocks"] for look in looks),
        "blocks_left": blocks,
        "left": left,
    }


def _course(looks: list[dict[str, dict[str, int]]], who: str) -> dict[str, Any]:
    """Figures of one process after the settling time."""
    settled = looks[int(SETTLING * len(looks)) :]
    tail = max(1, len(settled) // 10)
    row: dict[str, Any] = {}
    for what in ("resident", "own"):
        memory = np.array([look[who][f"{what}_kib"] for look in settled], np.float64) / 1024
        slope = np.polyfit(np.linspace(0.0, 1.0, len(memory)), memory, 1)[0]
        row |= {f"{what}_mib": float(memory.mean()), f"{what}_slope": float(slope / memory.mean())}
        row[f"{what}_tenths_mib"] = [round(float(np.median(part)), 1) for part in np.array_split(memory, 10)]
    for what in ("files", "threads"):
        row[f"{what}_before"] = float(np.median([look[who][what] for look in settled[:tail]]))
        row[f"{what}_after"] = float(np.median([look[who][what] for look in settled[-tail:]]))
    return row


def show(found: dict[str, Any]) -> None:
    """Print the figures."""
    title = (
        f"{found['minutes']:g} minutes, {found['started']} workers came, {found['killed']} of them were killed; "
        f"{found['pushes']:,} pushes, {found['pushes_lost']} lost; /dev/shm: at most {found['most_blocks']} names at a "
        f"look, {found['blocks_left']} left at the end"
    )
    table = Table("process", "resident", "slope", "of its own", "slope", "files", "threads", title=title)
    for row in found["processes"]:
        table.add_row(
            row["process"],
            f"{row['resident_mib']:.1f} MiB",
            f"{row['resident_slope']:+.2%}",
            f"{row['own_mib']:.1f} MiB",
            f"{row['own_slope']:+.2%}",
            f"{row['files_before']:.0f} → {row['files_after']:.0f}",
            f"{row['threads_before']:.0f} → {row['threads_after']:.0f}",
        )
    report.show(table, found)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--parameters", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        address, which, shares, seed = arguments.work
        work(address, int(which), bool(int(shares)), int(seed))
        return
    found = measure(arguments.minutes, arguments.workers, arguments.parameters, arguments.seed)
    show(found)
    if found["failed"] or found["left"] or found["blocks_left"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
