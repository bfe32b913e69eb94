"""The same MNIST job three ways: by `dbelief train`, by hand, and by hand with a worker killed half-way.

    DBELIEF_DATA=... python benchmarks/by_hand.py [--job examples/mnist.yaml] [--seeds 0,1,2]

By hand means the README's commands: a Redis server, a coordinator, three shards, two workers. The killed worker gets
SIGKILL when half of the samples are trained, and nobody starts it again. The figure is the test accuracy against
`dbelief train`'s, median over the seeds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import dbelief
from dbelief.rundir.events import read_events
from dbelief.rundir.summary import Summary, read_summary

SHARDS, WORKERS = 3, 2
DEADLINE_S = 600.0


def wait_for(happened: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not happened():
        if time.monotonic() > until_s:
            raise SystemExit(f"waited {DEADLINE_S:g} s for {what}")
        time.sleep(0.05)


def by_hand(job: Path, seed: int, folder: Path, kill_at: int | None) -> Summary:
    """Start every role as a process, and end all of them again."""
    redis = shutil.which("redis-server")
    if redis is None:
        raise SystemExit("by_hand needs a redis-server on the PATH")
    socket, ready = folder / "redis.sock", folder / "address"
    command = [sys.executable, "-P", "-m", "dbelief"]
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    try:
        start(redis, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder))
        wait_for(socket.exists, "redis-server")
        fields = {"shards": SHARDS, "replicas": WORKERS, "seed": seed, "output": str(folder)}
        sets = [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]
        listen = ["--listen", "127.0.0.1:0", "--registry", f"unix://{socket}", "--ready-file", str(ready)]
        coordinator = start(*command, "coordinator", str(job.absolute()), *sets, *listen)
        wait_for(ready.exists, "the coordinator")
        address = ready.read_text()
        for _ in range(SHARDS):
            start(*command, "ps", "--coordinator", address)
        workers = [start(*command, "worker", "--coordinator", address) for _ in range(WORKERS)]
        run = folder / dbelief_name(job)
        if kill_at is not None:
            wait_for(lambda: samples_of(run) >= kill_at, f"{kill_at} samples")
            workers[-1].kill()
        coordinator.wait(DEADLINE_S)
        return read_summary(run / "summary.json")
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def dbelief_name(job: Path) -> str:
    from dbelief.job import load_job

    return load_job(job).name


def samples_of(run: Path) -> int:
    if not (run / "events.jsonl").exists():
        return 0
    return max((e["samples"] for e in read_events(run / "events.jsonl") if e["event"] == "progress"), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=Path(__file__).parents[1] / "examples" / "mnist.yaml")
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    ways: dict[str, list[Summary]] = {"dbelief train": [], "by hand": [], "by hand, a worker killed": []}
    for seed in (int(n) for n in arguments.seeds.split(",")):
        for way, summaries in ways.items():
            with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
                if way == "dbelief train":
                    fields: dict[str, Any] = {"shards": SHARDS, "replicas": WORKERS, "seed": seed, "output": folder}
                    summaries.append(dbelief.train(arguments.job, **fields))
                else:
                    half = ways["dbelief train"][0].samples // 2 if "killed" in way else None
                    summaries.append(by_hand(arguments.job, seed, Path(folder), half))
            last = summaries[-1]
            print(f"{way}, seed {seed}: {last.test_accuracy}, {last.wall_s:.0f} s", file=sys.stderr, flush=True)
    table = Table("way", "test accuracy, each seed", "median", "against train", "members lost", "pushes trained twice")
    results = []
    base = None
    for way, summaries in ways.items():
        accuracies = [100 * (s.test_accuracy or 0.0) for s in summaries]
        median = statistics.median(accuracies)
        base = median if base is None else base
        lost, twice = sum(s.members_lost for s in summaries), sum(s.pushes_trained_twice for s in summaries)
        results.append({"way": way, "accuracies": accuracies, "median": median, "against_train": median - base})
        each = " ".join(f"{a:.2f}" for a in accuracies)
        table.add_row(way, each, f"{median:.2f}", f"{median - base:+.2f}", str(lost), str(twice))
    Console(stderr=True).print(table)
    print(json.dumps({"shards": SHARDS, "workers": WORKERS, "results": results}))


if __name__ == "__main__":
    main()
