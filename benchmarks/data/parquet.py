"""A large Parquet set: reading it, and training on it with little memory, killed and resumed inside an epoch.

    python -m benchmarks.data.parquet [--gib 8] [--rounds 3] [--most-mib 1024] [--folder DIR]

The files are made from a seed: rows of 64 numbers that do not compress, in row groups of 100,000, 25.6 MB each. They
are removed at the end.

    reading     all rows once in the order of an epoch, as mini-batches, beside one-thread `ParquetFile.iter_batches`
                with each column as a NumPy array; each with a cold page cache (needs root), in turn
    training    a linear model, two workers, an epoch and a half: the resident memory of each process over the time
                (`VmRSS`, `VmHWM`), and once more with everything killed in the middle and resumed
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from benchmarks.harness import options, report, runs
from dbelief.data import load
from dbelief.job import ParquetData

COLUMNS, GROUP, GROUPS = 64, 100_000, 20
"""Numbers of a row, rows of a row group, row groups of a file."""
BATCH, MEMORY_MIB = 1000, 256
DEADLINE_S = 3600.0
PROCESSES = ("worker-0", "worker-1", "ps-0", "coordinator")


def write_files(folder: Path, gib: float) -> int:
    """Write the set; returns its rows."""
    groups = max(3, round(gib * 2**30 / (4 * COLUMNS * GROUP)))
    schema = pa.schema([(f"x{place}", pa.float32()) for place in range(COLUMNS - 1)] + [("y", pa.float32())])
    rng, weights = np.random.default_rng(0), np.linspace(-1, 1, COLUMNS - 1, dtype=np.float32)
    for first in range(0, groups, GROUPS):
        path = folder / f"part-{first // GROUPS:04}.parquet"
        with pq.ParquetWriter(path, schema, use_dictionary=False, write_statistics=False) as writer:
            for _ in range(first, min(first + GROUPS, groups)):
                x = rng.standard_normal((COLUMNS - 1, GROUP), dtype=np.float32)
                y = weights @ x + rng.standard_normal(GROUP, dtype=np.float32)
                writer.write_table(pa.table([*x, y], schema=schema), row_group_size=GROUP)
    return groups * GROUP


def by_pyarrow(folder: Path) -> int:
    """Read everything with one thread of pyarrow; returns the rows."""
    rows = 0
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(use_threads=False):
                arrays = [column.to_numpy() for column in batch.columns]
                rows += len(arrays[0])
    return rows


def by_dbelief(folder: Path) -> int:
    """Read everything as the mini-batches of an epoch; returns the rows."""
    fields = {"source": "parquet", "files": str(folder), "kind": "regression", "target": "y"}
    spec = ParquetData.model_validate(fields | {"validation": 0, "test": 0, "memory": MEMORY_MIB})
    train = load(spec, folder).train
    assert train is not None
    order, buffer, rows = train.order(0, 0), train.buffer(BATCH), 0
    buffer.expect(order, 0, len(train))
    for first in range(0, len(train), BATCH):
        rows += len(train.gather(order[first : first + BATCH], buffer))
    return rows


def with_cold_cache(read: Callable[[Path], int], folder: Path) -> float:
    """Seconds of a reading, with an empty page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    began_s = time.perf_counter()
    read(folder)
    return time.perf_counter() - began_s


def job_of(folder: Path, samples: int) -> dict[str, Any]:
    """A linear model on the set."""
    return {
        "name": "large",
        "model": {"layers": [{"dense": 1}], "loss": "square"},
        "data": {
            "source": "parquet",
            "files": str(folder),
            "kind": "regression",
            "target": "y",
            "validation": 1,
            "test": 1,
            "memory": MEMORY_MIB,
        },
        "strategy": {"name": "downpour", "batch": BATCH, "rule": {"name": "sgd", "rate": 0.01}},
        "limits": {"samples": samples},
        "evaluate": {"every": samples // 3},
        "snapshots": {"every_s": 10},
        "shards": 1,
        "replicas": 2,
        "output": "runs",
    }


def sampled(run: runs.Run, into: dict[str, list[int]]) -> None:
    """Add the resident memory of each process, in KiB, and note its peak."""
    for members in run.members().values():
        for pid, name in members:
            try:
                resident, peak = (runs.status_kib(pid, field) for field in ("VmRSS", "VmHWM"))
            except OSError:
                continue  # it has ended
            into.setdefault(name, []).append(resident)
            into[f"{name} peak"] = [max(peak, *into.get(f"{name} peak", [0]))]


def train(folder: Path, samples: int, kill_at: float | None) -> dict[str, Any]:
    """A job on the set; `kill_at`: share of the samples after which all its processes are killed, once."""
    memory: dict[str, list[int]] = {}
    with runs.temporary_run("large") as run:
        (run.folder / "job.yaml").write_text(json.dumps(job_of(folder, samples)))
        run.run = run.folder / "runs" / "large"
        began_s = time.perf_counter()
        process = run.start("train", ["train", "--quiet", "job.yaml"])
        while process.poll() is None:
            sampled(run, memory)
            if kill_at is not None and run.samples() > kill_at * samples:
                for pid in run.processes():
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                kill_at = None
                process = run.start("resumed", ["train", "--quiet", "--resume", "job.yaml"])
            time.sleep(1.0)
        if process.returncode:
            raise SystemExit("\n".join(run.output("train")[-5:]))
        summary = run.summary()
    kept = ("samples", "samples_per_replica", "pushes_trained_twice", "pushes_lost", "test_loss")
    figures: dict[str, Any] = {name: summary[name] for name in kept} | {"seconds": time.perf_counter() - began_s}
    return figures | {"memory": memory_of(memory)}


def memory_of(memory: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Peak of each process, and medians of the quarters of its samples, in MiB."""
    found: list[dict[str, Any]] = []
    for name in PROCESSES:
        values = memory[name]
        quarter = max(1, len(values) // 4)
        parts = [values[at : at + quarter] for at in range(0, len(values), quarter)][:4]
        quarters_mib = [round(statistics.median(part) / 1024) for part in parts]
        found.append({"process": name, "peak_mib": memory[f"{name} peak"][0] / 1024, "quarters_mib": quarters_mib})
    return found


def main() -> None:
    """Measure, and print the tables."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--gib", type=float, default=8.0, help="size of the set")
    parser.add_argument("--rounds", type=int, default=3, help="readings of each way")
    parser.add_argument("--most-mib", type=int, default=1024, help="peak memory that a worker may have")
    parser.add_argument("--folder", type=Path, help="where the set is made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="parquet-") as name:
        folder = Path(name)
        rows = write_files(folder, arguments.gib)
        size = sum(path.stat().st_size for path in folder.iterdir())
        report.progress({"rows": rows, "GiB": size / 2**30})
        pairs = []
        for _ in range(arguments.rounds):
            pairs.append([with_cold_cache(way, folder) for way in (by_pyarrow, by_dbelief)])
            report.progress({"seconds": pairs[-1]})
        whole = train(folder, round(1.5 * rows), None)
        report.progress(whole)
        killed = train(folder, round(1.5 * rows), 0.4)
        report.progress(killed)
    speed = statistics.median(one / other for one, other in pairs)
    reading: list[dict[str, Any]] = []
    for way, ratio, seconds in zip(("iter_batches", "dbelief"), (1.0, speed), zip(*pairs, strict=True), strict=True):
        reading.append({"way": way, "median_s": statistics.median(seconds), "speed": ratio, "seconds": list(seconds)})
    jobs = [{"job": "whole", **whole}, {"job": "killed and resumed", **killed}]
    memory: list[dict[str, Any]] = whole["memory"]
    table = Table("", "figure")
    table.add_row("reading: speed of iter_batches that is reached", f"{speed:.2f}")
    for row in memory:
        table.add_row(
            f"{row['process']}: peak MiB; by quarters of the run", f"{row['peak_mib']:.0f}; {row['quarters_mib']}"
        )
    for row in jobs:
        row["worker_mib"] = max(one["peak_mib"] for one in row.pop("memory")[:2])
        twice = row["pushes_trained_twice"]
        table.add_row(
            f"{row['job']}: samples, pushes trained twice, test loss",
            f"{row['samples']:,}, {twice}, {row['test_loss']:.4f}",
        )
    report.show(table, {"rows": rows, "gib": size / 2**30, "reading": reading, "memory": memory, "jobs": jobs})
    if jobs[0]["worker_mib"] > arguments.most_mib:
        raise SystemExit(f"a worker has used more than {arguments.most_mib} MiB")


if __name__ == "__main__":
    main()
