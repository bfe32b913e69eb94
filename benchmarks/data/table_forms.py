"""One table as other tools write it: the test AUC of a linear model is the same from each form.

    DBELIEF_DATA=... python -m benchmarks.data.table_forms

a9a (32,561 rows for training, 16,281 for the test, 123 numbers) as LIBSVM text that counts from 1 and from 0, as CSV
with the index that pandas writes, as Parquet with an index in pandas' metadata, and as Parquet with one column of
list<double>. The index knows the class: rows are sorted by it in each file. Each form is read in memory, Parquet also
streamed, and trained by Sandblaster L-BFGS; then the outputs of `dbelief predict` for the test file give the AUC again.
Beside them scikit-learn's logistic regression with the same penalty.
"""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table
from sklearn.datasets import dump_svmlight_file, load_svmlight_files
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.harness import options, report, runs

FEATURES, L2 = 123, 1e-4
JOB: dict[str, Any] = {
    "name": "form",
    "model": {"layers": [{"dense": 2}], "loss": "softmax_cross_entropy"},
    "strategy": {
        "name": "sandblaster",
        "portion": 4000,
        "history": 10,
        "l2": L2,
        "relative_decrease": 1e-8,
        "iterations": 200,
    },
    "evaluate": {"metrics": ["auc"]},
    "shards": 1,
    "replicas": 1,
}
LABELLED: dict[str, Any] = {"kind": "classes", "target": "y"}
Rows = tuple[np.ndarray, np.ndarray]
"""Inputs float64 (n, FEATURES), labels (n,), sorted by label."""


def libsvm(path: Path, rows: Rows, zero_based: bool) -> None:
    """LIBSVM text."""
    dump_svmlight_file(*rows, str(path), zero_based=zero_based)


def csv_with_index(path: Path, rows: Rows) -> None:
    """What `DataFrame.to_csv` writes: a first column without a name."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", *(f"x{place}" for place in range(FEATURES)), "y"])
        for number, (x, y) in enumerate(zip(*rows, strict=True)):
            writer.writerow([number, *(f"{value:g}" for value in x), int(y)])


def parquet_with_index(path: Path, rows: Rows) -> None:
    """What `DataFrame.to_parquet` writes of a frame with an index of its own."""
    inputs, labels = rows
    columns = {f"x{place}": inputs[:, place] for place in range(FEATURES)}
    table = pa.table(columns | {"y": labels.astype(np.int64), "number": np.arange(len(labels))})
    said = json.dumps({"index_columns": ["number"], "columns": []})
    pq.write_table(table.replace_schema_metadata({b"pandas": said.encode()}), path, row_group_size=4000)


def parquet_of_lists(path: Path, rows: Rows) -> None:
    """One column of list<double>."""
    inputs, labels = rows
    table = pa.table({"x": pa.array(inputs.tolist(), pa.list_(pa.float64())), "y": labels.astype(np.int64)})
    pq.write_table(table, path, row_group_size=4000)


def parquet_data(streamed: bool) -> dict[str, Any]:
    """The data section of files of Parquet."""
    own = {"source": "parquet", "files": "train", "test_files": "test", "streamed": streamed, "window": 9}
    return own | LABELLED


SPARSE = {"source": "libsvm", "train": "train", "test": "test", "features": FEATURES}
FORMS: dict[str, tuple[Callable[[Path, Rows], None], dict[str, Any]]] = {
    "LIBSVM from 1": (lambda path, rows: libsvm(path, rows, False), SPARSE),
    "LIBSVM from 0": (lambda path, rows: libsvm(path, rows, True), SPARSE),
    "CSV with pandas' index": (csv_with_index, {"source": "csv", "file": "train", "test_file": "test"} | LABELLED),
    "Parquet with pandas' index": (parquet_with_index, parquet_data(False)),
    "the same, streamed": (parquet_with_index, parquet_data(True)),
    "Parquet, list<double>": (parquet_of_lists, parquet_data(False)),
    "the same, streamed ": (parquet_of_lists, parquet_data(True)),
}


def measured(name: str, train: Rows, test: Rows) -> dict[str, Any]:
    """AUC of the test as the job's summary has it, and of what `dbelief predict` gives for the test file."""
    write, data = FORMS[name]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for file, rows in (("train", train), ("test", test)):
            write(folder / file, rows)
        (folder / "job.yaml").write_text(json.dumps(JOB | {"data": data | {"validation": 0}}))
        said = runs.dbelief(folder, "train", "--quiet", "job.yaml").stderr
        summary = json.loads((folder / "runs/form/summary.json").read_text())
        lines = runs.dbelief(folder, "predict", "--outputs", "runs/form", "test").stdout.splitlines()[1:]
    outputs = np.array([line.split(",")[1:] for line in lines], float)
    predicted = roc_auc_score(test[1] > 0, outputs[:, 1] - outputs[:, 0])
    notes = [line for line in said.splitlines() if "index of a pandas frame" in line]
    return {"form": name.strip(), "auc": summary["test_metrics"]["auc"], "predicted": predicted, "notes": len(notes)}


def sorted_rows(inputs: Any, labels: np.ndarray) -> Rows:
    """Dense rows, sorted by their labels."""
    order = np.argsort(labels, kind="stable")
    return inputs.toarray()[order], labels[order]


def main() -> None:
    """Measure, and print the table."""
    options.new_parser(__doc__).parse_args()
    folder = Path(os.environ["DBELIEF_DATA"]) / "a9a"
    loaded = load_svmlight_files([str(folder / "a9a"), str(folder / "a9a.t")], n_features=FEATURES)
    train, test = sorted_rows(*loaded[:2]), sorted_rows(*loaded[2:])
    # The mean loss and l2 / 2 times the squares, as the job's; of two outputs the difference counts.
    other = LogisticRegression(C=2 / (L2 * len(train[1])), max_iter=5000, tol=1e-8).fit(*train)
    auc = float(roc_auc_score(test[1], other.decision_function(test[0])))
    shown = Table("form", "AUC", "of predict", "notes of the index")
    rows: list[dict[str, Any]] = []
    for name in FORMS:
        rows.append(measured(name, train, test))
        report.progress(rows[-1])
        found = rows[-1]
        shown.add_row(found["form"], f"{found['auc']:.6f}", f"{found['predicted']:.6f}", str(found["notes"]))
    shown.add_row("scikit-learn", f"{auc:.6f}", "", "")
    report.show(shown, {"rows": [*rows, {"form": "scikit-learn", "auc": auc}]})


if __name__ == "__main__":
    main()
