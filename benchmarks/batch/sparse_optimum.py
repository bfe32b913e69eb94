"""Optimum of the batch method on sparse rows against SciPy's, with an L2 penalty.

    python -m benchmarks.batch.sparse_optimum [--rows 100000] [--each 20] [--columns 1000000] [--l2 0.0001]

Real processes: two shards, one replica; a softmax layer of two classes on rows as in `sparse_memory`. The penalty makes
the optimum unique. Sandblaster begins at the job's initial values and ends where an iteration lowers the objective by
less than 1e-9 of it. SciPy's L-BFGS-B, in float64 on a CSR matrix and with as many pairs, begins at 0 and ends where no
number of the gradient is above 1e-9. Both objectives are those of the float64 criterion.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from safetensors.numpy import load_file
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import log_softmax
from sklearn.datasets import load_svmlight_file

import dbelief
from benchmarks.batch.sparse_memory import FEW, job, write_rows
from benchmarks.harness import options, report
from dbelief.rundir.events import read_events

CLASSES, PAIRS = 2, 10
DECREASE, GRADIENT, LOSS = 1e-9, 1e-9, 1e-6
"""Ends of the two methods, and the relative difference of the objectives that is allowed."""


@dataclass
class Criterion:
    """Mean loss of (m, n) rows, and l2 / 2 |w|^2 on top, in float64."""

    inputs: csr_array
    labels: np.ndarray
    l2: float

    def __post_init__(self) -> None:
        self._columns = self.inputs.T.tocsr()
        self._truth = np.eye(CLASSES)[self.labels]

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient at (n + 1) `CLASSES` numbers: weight by rows, then bias."""
        rows, columns = self.inputs.shape
        logs = log_softmax(self.inputs @ flat[:-CLASSES].reshape(columns, CLASSES) + flat[-CLASSES:], axis=1)
        slope = (np.exp(logs) - self._truth) / rows
        value = -float((self._truth * logs).sum()) / rows + self.l2 / 2 * float(flat @ flat)
        return value, np.r_[(self._columns @ slope).ravel(), slope.sum(axis=0)] + self.l2 * flat


def trained(folder: Path, path: Path, rows: int, columns: int, l2: float) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Run the job; the parameters at its end in float64, and its iterations."""
    ends = {"relative_decrease": DECREASE, "iterations": 1_000}
    strategy = {"name": "sandblaster", "portion": max(1, rows // FEW), "history": PAIRS, "l2": l2, **ends}
    run = Path(dbelief.train(job({"strategy": strategy}, path, columns, CLASSES), output=str(folder)).folder)
    model = load_file(run / "model.safetensors")
    events = [event for event in read_events(run / "events.jsonl") if event["event"] == "iteration"]
    return np.r_[model["dense1.weight"].ravel(), model["dense1.bias"]].astype(np.float64), events


def compare(folder: Path, rows: int, each: int, columns: int, l2: float) -> dict[str, Any]:
    """Both methods on the same rows; the figures."""
    path = folder / "rows.txt"
    write_rows(path, rows, each, columns, CLASSES)
    model, events = trained(folder, path, rows, columns, l2)
    inputs, labels = load_svmlight_file(str(path), n_features=columns, dtype=np.float32)
    criterion = Criterion(csr_array(inputs).astype(np.float64), labels.astype(int), l2)
    method = {"maxcor": PAIRS, "ftol": 0.0, "gtol": GRADIENT, "maxiter": 10_000, "maxfun": 20_000}
    best = minimize(criterion, np.zeros(len(model)), jac=True, method="L-BFGS-B", options=method)
    value, _ = criterion(model)
    return {
        "objective": value,
        "scipy": float(best.fun),
        "off": value / float(best.fun) - 1,
        "reported_off": events[-1]["loss"] / value - 1,
        "iterations": events[-1]["iteration"],
        "evaluations": events[-1]["evaluations"],
        "scipy_iterations": int(best.nit),
        "scipy_evaluations": int(best.nfev),
        "objectives": [event["loss"] for event in events],
    }


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=20, help="numbers drawn for a row")
    parser.add_argument("--columns", type=int, default=1_000_000)
    parser.add_argument("--l2", type=float, default=1e-4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparse-") as folder:
        found = compare(Path(folder), arguments.rows, arguments.each, arguments.columns, arguments.l2)
    table = Table("method", "objective", "relative difference", "iterations", "evaluations")
    table.add_row("Sandblaster", f"{found['objective']:.10f}", f"{found['off']:.1e}", *_counts(found, ""))
    table.add_row("SciPy", f"{found['scipy']:.10f}", "", *_counts(found, "scipy_"))
    report.show(table, found)
    raise SystemExit(0 if max(abs(found["off"]), abs(found["reported_off"])) <= LOSS else 1)


def _counts(found: dict[str, Any], of: str) -> tuple[str, str]:
    return str(found[f"{of}iterations"]), str(found[f"{of}evaluations"])


if __name__ == "__main__":
    main()
