"""Memory of every process of a job on sparse rows of 2^20 columns, and its objective against SciPy's at the same point.

    python -m benchmarks.batch.sparse_memory [--rows 200000] [--each 60] [--columns 1048576] [--classes 2] [--gz]
        [--only sandblaster] [--l1 0]
    python -m benchmarks.batch.sparse_memory --only sandblaster --rows 1000000 --each 20 --columns 100000000

Real processes, by hand: coordinator, two shards, one replica; a softmax layer, by Sandblaster L-BFGS and by Downpour.
The file is made from a seed: labels by a model of its own, columns as often as one over their number, so that some are
frequent and most are rare. A figure is the most that was ever resident (VmHWM), from the start to the end of the job:
reading, initial values, training, the export of the model. It is held against the same job on forty rows of as many
columns, in as many portions: interpreter, compiled loops, parameters, gradients and the method's vectors, which do not
depend on the rows.
What is more is to be at most twice the sparse data: 8 bytes for each number, and 16 for each row (its end, its label).
The coordinator is to stay below 200 MB, whatever the columns. The objective at the end, as `dbelief evaluate` computes
it, is held against float64 on SciPy's matrix; Sandblaster's is reported after each iteration.

With 100 million columns and two classes a vector has 800 MB. Sandblaster keeps 15 on the shards, 12 GB: the sum of
gradients counts twice, and a history of 3 pairs has 8.
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from scipy.sparse import csr_array
from scipy.special import log_softmax
from sklearn.datasets import load_svmlight_file

import dbelief
from benchmarks.batch.coordinator_memory import peak_mb
from benchmarks.harness import options, report, runs
from dbelief.data import load
from dbelief.evaluation.evaluate import evaluate

DEADLINE_S = 1800.0
FEW = 40
"""Rows of the job that others are held against, and the portions of every job; there are five times as many batches."""
TIMES, LOSS, COORDINATOR_MB = 2.0, 1e-6, 200.0


def write_rows(path: Path, rows: int, each: int, columns: int, classes: int) -> None:
    """Write a file of rows from a seed; `each` numbers are drawn for a row, and columns drawn twice are there once."""
    rng = np.random.default_rng(17)
    weight = rng.standard_normal((columns, classes))
    with gzip.open(path, "wt", 1) if path.suffix == ".gz" else path.open("w") as file:
        for row in range(rows):
            drawn = np.unique((columns ** rng.random(each)).astype(np.int64) - 1)
            values = rng.random(len(drawn)).round(4) + 1e-4
            label = row % classes if row < classes else int((values @ weight[drawn]).argmax())
            numbers = " ".join(f"{a + 1}:{b:.4f}" for a, b in zip(drawn.tolist(), values.tolist(), strict=True))
            file.write(f"{label} {numbers}\n")


def strategies(rows: int, only: str | None, l1: float) -> list[dict[str, Any]]:
    """Fields of the two jobs, or of the one of this strategy, for a set of so many rows."""
    batch = max(1, rows // (5 * FEW))
    downpour = {"name": "downpour", "batch": batch, "rule": {"name": "adagrad", "rate": 0.1}, "warm_start": None}
    sandblaster = {"name": "sandblaster", "portion": rows // FEW, "history": 3, "iterations": 5, "l1": l1}
    jobs: list[dict[str, Any]] = [{"strategy": sandblaster}, {"strategy": downpour, "limits": {"epochs": 1}}]
    return [job for job in jobs if only in (None, job["strategy"]["name"])]


def job(fields: dict[str, Any], path: Path, columns: int, classes: int) -> dict[str, Any]:
    return {
        "name": "sparse",
        "model": {"layers": [{"dense": classes}], "loss": "softmax_cross_entropy"},
        "data": {"source": "libsvm", "train": str(path), "features": columns, "validation": 0},
        **fields,
        "evaluate": {"every": None, "keep": "last"},
        "snapshots": {"every_s": None},
        "deadlines": {"beat_s": 60.0},
        "shards": 2,
        "replicas": 1,
        "threads": 1,
    }


def one(fields: dict[str, Any], path: Path, columns: int, classes: int, measure: bool) -> dict[str, Any]:
    """Run the job once; the peaks of its processes in MB, and its objective at the end where it is wanted."""
    with runs.temporary_run("sparse") as run:
        coordinator, members = run.coordinator(job(fields, path, columns, classes), DEADLINE_S)
        processes = {"coordinator": coordinator}
        for started, role in (("shard 0", "ps"), ("shard 1", "ps"), ("worker", "worker")):
            processes[started] = run.start(started.replace(" ", "-"), [role, *members])
        peaks = dict.fromkeys(processes, 0.0)

        def ended() -> int | None:
            for started, process in processes.items():
                peaks[started] = max(peaks[started], peak_mb(process.pid))
            return coordinator.poll()

        events = run.finish(ended, DEADLINE_S)
        rounded = {key: round(value, 1) for key, value in peaks.items()}
        row: dict[str, Any] = {"strategy": fields["strategy"]["name"], "peak_mb": rounded}
        if measure:
            row |= objective(run.run, path, columns)
            row["objectives"] = [event["loss"] for event in events if event["event"] == "iteration"]
            penalty = fields["strategy"].get("l1", 0.0) * row.pop("norm1")
            row["reported"] = row["objectives"][-1] - penalty if row["objectives"] else None
        report.progress(row)
        return row


def objective(run: Path, path: Path, columns: int) -> dict[str, float]:
    """The mean loss of the training rows at the run's model, by dbelief and in float64 by SciPy."""
    trained = dbelief.load_model(run)
    train = load(trained.job.data, trained.job.folder, ("train",)).train
    assert train is not None
    mine = evaluate(trained.model, trained.views, train, trained.layout, trained.backend).loss
    inputs, labels = load_svmlight_file(str(path), n_features=columns, dtype=np.float32)
    weight, bias = (np.asarray(trained.views[f"dense1.{name}"], np.float64) for name in ("weight", "bias"))
    logs = log_softmax(csr_array(inputs).astype(np.float64) @ weight + bias, axis=1)
    scipy = -float(logs[np.arange(len(labels)), labels.astype(int)].mean())
    return {"loss": mine, "scipy": scipy, "norm1": float(np.abs(weight).sum()), "zeros": float((weight == 0).mean())}


def sparse_mb(path: Path) -> float:
    """What the rows of a file take, from its colons and lines."""
    numbers = rows = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        while part := file.read(1 << 20):
            numbers += part.count(b":")
            rows += part.count(b"\n")
    return (8 * numbers + 16 * rows) / 1e6


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--each", type=int, default=60, help="numbers drawn for a row")
    parser.add_argument("--columns", type=int, default=1 << 20)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--only", choices=("sandblaster", "downpour"), help="one of the strategies; default: both")
    parser.add_argument("--l1", type=float, default=0.0, help="of Sandblaster; its objective has that on top")
    parser.add_argument("--gz", action="store_true", help="write a gzip file")
    arguments = parser.parse_args()
    shape = arguments.columns, arguments.classes
    results = []
    with tempfile.TemporaryDirectory(prefix="sparse-") as folder:
        ending = ".gz" if arguments.gz else ""
        path, few = Path(folder) / f"rows.txt{ending}", Path(folder) / f"few.txt{ending}"
        write_rows(path, arguments.rows, arguments.each, *shape)
        write_rows(few, FEW, arguments.each, *shape)
        data_mb = sparse_mb(path)
        asked = arguments.only, arguments.l1
        for base_fields, fields in zip(strategies(FEW, *asked), strategies(arguments.rows, *asked), strict=True):
            base = one(base_fields, few, *shape, measure=False)
            results.append({**one(fields, path, *shape, measure=True), "base_mb": base["peak_mb"]})
    good = show(results, data_mb, 4e-6 * (arguments.columns + 1) * arguments.classes)
    raise SystemExit(0 if good else 1)


def show(results: list[dict[str, Any]], data_mb: float, vector_mb: float) -> bool:
    """Print table and JSON; whether every figure is as it should be."""
    table = Table("strategy", "process", "peak, MB", f"with {FEW} rows, MB", "more, MB", "over the sparse data")
    more = []
    for row in results:
        row["over_data"] = {}
        for process, peak in row["peak_mb"].items():
            base = row["base_mb"][process]
            more.append((peak - base) / data_mb)
            row["over_data"][process] = more[-1]
            table.add_row(row["strategy"], process, f"{peak}", f"{base}", f"{peak - base:.1f}", f"{more[-1]:.2f}")
    off = [abs(row["loss"] / row["scipy"] - 1) for row in results]
    off += [abs(row["reported"] / row["scipy"] - 1) for row in results if row["reported"] is not None]
    coordinator_mb = max(row["peak_mb"]["coordinator"] for row in results)
    report.show(table, {"sparse_data_mb": data_mb, "vector_mb": vector_mb, "results": results, "loss_off": max(off)})
    return bool(max(more) <= TIMES and max(off) <= LOSS and coordinator_mb < COORDINATOR_MB)


if __name__ == "__main__":
    main()
