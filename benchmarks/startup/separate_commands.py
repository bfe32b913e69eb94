"""The same MNIST job three ways: by `dbelief train`, by separate commands, and by these with a worker killed half-way.

    DBELIEF_DATA=... python -m benchmarks.startup.separate_commands [--job examples/mnist.yaml] [--seeds 0,1,2]

The separate commands are the roles by hand of docs/how-to/tls.md: a Redis server, a coordinator, three shards, two
workers. The killed worker gets SIGKILL when half of the samples are trained, and is not started again. The figure is
the test accuracy against `dbelief train`'s, median over the seeds.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

import dbelief
from benchmarks.harness import checkout, options, report, runs
from dbelief.job import load_job
from dbelief.rundir.summary import Summary, read_summary

SHARDS, WORKERS = 3, 2
DEADLINE_S = 600.0


def by_hand(job: Path, seed: int, kill_at: int | None) -> Summary:
    """Start every role as a process, and end all of them again."""
    redis = shutil.which("redis-server")
    if redis is None:
        raise SystemExit("separate_commands needs a redis-server on the PATH")
    with runs.temporary_run(load_job(job).name) as run:
        socket = run.folder / "redis.sock"
        arguments = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(run.folder)]
        run.start_program("redis", [redis, *arguments])
        runs.wait_for(lambda: socket.exists() or None, "redis-server", DEADLINE_S)
        fields = options.settings({"shards": SHARDS, "replicas": WORKERS, "seed": seed})
        coordinator, address = run.coordinator(job, DEADLINE_S, [*fields, "--registry", f"unix://{socket}"])
        for number in range(SHARDS):
            run.start(f"ps-{number}", ["ps", *address])
        workers = [run.start(f"worker-{n}", ["worker", *address]) for n in range(WORKERS)]
        if kill_at is not None:
            runs.wait_for(lambda: run.samples() >= kill_at or None, f"{kill_at} samples", DEADLINE_S)
            workers[-1].kill()
        coordinator.wait(DEADLINE_S)
        return read_summary(run.run / "summary.json")


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--job", type=Path, default=checkout.EXAMPLES / "mnist.yaml")
    parser.add_argument("--seeds", type=options.numbers, default="0,1,2")
    arguments = parser.parse_args()
    ways: dict[str, list[Summary]] = {"dbelief train": [], "by hand": [], "by hand, a worker killed": []}
    for seed in arguments.seeds:
        for way, summaries in ways.items():
            if way == "dbelief train":
                with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
                    fields: dict[str, Any] = {"shards": SHARDS, "replicas": WORKERS, "seed": seed, "output": folder}
                    summaries.append(dbelief.train(arguments.job, **fields).summary)
            else:
                half = ways["dbelief train"][0].samples // 2 if "killed" in way else None
                summaries.append(by_hand(arguments.job, seed, half))
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
        figures = {"way": way, "accuracies": accuracies, "median": median, "against_train": median - base}
        results.append({**figures, "members_lost": lost, "pushes_trained_twice": twice})
        table.add_row(
            way, report.two_digits(accuracies), f"{median:.2f}", f"{median - base:+.2f}", str(lost), str(twice)
        )
    report.show(table, {"shards": SHARDS, "workers": WORKERS, "results": results})


if __name__ == "__main__":
    main()
