"""What TLS adds to a step of a small model: MNIST 784-256-10, mini-batches of 100, by Downpour over TCP.

    DBELIEF_DATA=... python -m benchmarks.workers.tls_step [--rounds 5] [--epochs 4] [--shards 1] [--workers 4]

The roles are separate commands, with credentials of `dbelief certs` and without, in turn. As in `small_step`, a run of
one epoch is subtracted from a longer one. `cpu s`: processor time of all processes for 1,000 samples.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, runs, timing
from benchmarks.harness.timing import processor_s
from benchmarks.workers.small_step import FIELDS, JOB, LIMIT_S, SHORT, speed

WAYS = ("plain", "TLS")
ROLES = ("coordinator", "ps", "worker")


def run(shards: int, workers: int, epochs: int, certs: Path | None) -> np.ndarray:
    """(3,) samples, seconds, and processor seconds of all processes, of one run."""
    shown = {role: ["--credentials", str(certs / role)] if certs is not None else [] for role in ROLES}
    before_s = processor_s()
    with runs.temporary_run("mnist") as made:
        fields = options.settings({**FIELDS, "shards": shards, "replicas": workers, "limits.epochs": epochs})
        more = [*fields, "--registry", "memory:", "--no-pictures", *shown["coordinator"]]
        _, address = made.coordinator(JOB, LIMIT_S, more)
        member = [*address, "--no-shared-memory"]
        for number in range(shards):
            made.start(f"ps-{number}", ["ps", *member, *shown["ps"]])
        for number in range(workers):
            made.start(f"worker-{number}", ["worker", *member, "--threads", "1", *shown["worker"]])
        for process in made.started:
            if process.wait(LIMIT_S):
                raise RuntimeError(f"a run failed: {process.args!r}")
        found = made.summary()
    return np.array([found["samples"], found["wall_s"], processor_s() - before_s])


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="of the longer run; 55,000 samples each")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        certs = Path(folder) / "certs"
        subprocess.run([*runs.COMMAND, "certs", str(certs)], check=True, stdout=subprocess.DEVNULL)
        for _ in range(arguments.rounds):
            for way, mine in rows.items():
                used = certs if way == "TLS" else None
                made = [run(arguments.shards, arguments.workers, epochs, used) for epochs in (arguments.epochs, SHORT)]
                mine.append(speed(*made))
                report.progress({"way": way, **mine[-1]})
    table = Table("way", "samples/s", "cpu s", title=f"{arguments.rounds} rounds, {arguments.shards} shards")
    ways = []
    for way, mine in rows.items():
        middle = timing.medians(mine, *mine[0])
        table.add_row(way, f"{middle['samples_per_s']:,.0f}", f"{middle['cpu_s']:.4f}")
        over_plain = {
            f"{name}_x": statistics.median(
                one[name] / plain[name] for plain, one in zip(rows["plain"], mine, strict=True)
            )
            for name in ("cpu_s", "samples_per_s")
        }
        ways.append({"way": way, **middle, **over_plain})
    report.show(table, {"rows": rows, "ways": ways})


if __name__ == "__main__":
    main()
