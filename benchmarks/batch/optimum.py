"""Optimum of the batch method against SciPy's, for several numbers of shards and replicas: examples/a9a.yaml.

    DBELIEF_DATA=... python -m benchmarks.batch.optimum [--shards 1,2,3,7] [--replicas 1,3,8] [--ordered]

Two runs of real processes for each pair: one of a single iteration, whose step from w = 0 is the gradient there times a
known length; and one to the end. Both are held against SciPy's float64 on the same criterion: the gradient by the
relative length of the difference, the loss at the end, and the evaluations until it is within 1e-6 of the optimum
against L-BFGS-B's. With --ordered bundles are added in order, and the digests of the models at the end are to be equal
for any number of replicas.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from safetensors.numpy import load_file
from scipy.optimize import minimize
from sklearn.datasets import load_svmlight_file

import dbelief
from benchmarks.harness import checkout, options, report
from dbelief.rundir.events import read_events

JOB = checkout.EXAMPLES / "a9a.yaml"
L2 = 1e-3
GRADIENT, LOSS, MORE_EVALUATIONS = 1e-6, 1e-6, 1.3


@dataclass
class Reference:
    """The criterion in float64, its optimum, and how many evaluations L-BFGS-B needs to come within 1e-6 of it."""

    inputs: Any
    signs: np.ndarray

    def __post_init__(self) -> None:
        seen: list[float] = []

        def noted(w: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.loss_and_gradient(w)
            seen.append(value)
            return value, gradient

        method_options = {"ftol": 0.0, "gtol": 1e-10, "maxiter": 10_000}
        self.best = float(minimize(noted, np.zeros(123), jac=True, method="L-BFGS-B", options=method_options).fun)
        self.evaluations = next(n for n, value in enumerate(seen, 1) if value <= self.best * (1 + LOSS))

    def loss_and_gradient(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        margins = self.signs * (self.inputs @ w)
        value = float(np.logaddexp(0, -margins).mean() + L2 / 2 * w @ w)
        return value, -(self.inputs.T @ (self.signs / (1 + np.exp(margins)))) / len(self.signs) + L2 * w


def trained(folder: str, **fields: Any) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Run the job; the parameters at its end, and its iterations."""
    run = Path(dbelief.train(JOB, output=folder, **fields).folder)
    events = [event for event in read_events(run / "events.jsonl") if event["event"] == "iteration"]
    return load_file(run / "model.safetensors")["w"], events


def one(reference: Reference, shards: int, replicas: int, ordered: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"shards": shards, "replicas": replicas, "strategy.ordered": ordered}
    with tempfile.TemporaryDirectory(prefix="opt-") as folder:
        step, (first,) = trained(folder, **fields, **{"strategy.iterations": 1})
    with tempfile.TemporaryDirectory(prefix="opt-") as folder:
        model, rows = trained(folder, **fields)
    _, gradient = reference.loss_and_gradient(np.zeros(123))
    ours = -step.astype(np.float64) / first["step"]
    loss, _ = reference.loss_and_gradient(model.astype(np.float64))
    row = {
        "shards": shards,
        "replicas": replicas,
        "gradient_off": float(np.linalg.norm(ours - gradient) / np.linalg.norm(gradient)),
        "loss_off": loss / reference.best - 1,
        "evaluations": next(r["evaluations"] for r in rows if r["loss"] <= reference.best * (1 + LOSS)),
        "iterations": rows[-1]["iteration"],
        "digest": hashlib.sha256(model.tobytes()).hexdigest()[:12],
    }
    report.progress(row)
    return row


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--shards", type=options.numbers, default="1,2,3,7")
    parser.add_argument("--replicas", type=options.numbers, default="1,3,8")
    parser.add_argument("--ordered", action="store_true", help="add bundles in their order")
    arguments = parser.parse_args()
    inputs, classes = load_svmlight_file(f"{os.environ['DBELIEF_DATA']}/a9a/a9a", n_features=123)
    reference = Reference(inputs, np.where(classes > 0, 1.0, -1.0))
    rows = [
        one(reference, shards, replicas, arguments.ordered)
        for shards in arguments.shards
        for replicas in arguments.replicas
    ]
    table = Table("shards", "replicas", "gradient off", "loss off", "evaluations to 1e-6", "iterations", "model")
    for row in rows:
        table.add_row(
            str(row["shards"]),
            str(row["replicas"]),
            f"{row['gradient_off']:.1e}",
            f"{row['loss_off']:.1e}",
            f"{row['evaluations']} (SciPy {reference.evaluations})",
            str(row["iterations"]),
            row["digest"],
        )
    worst = {
        "pairs": len(rows),
        "models": len({row["digest"] for row in rows}),
        "gradient_off": max(row["gradient_off"] for row in rows),
        "loss_off": max(row["loss_off"] for row in rows),
        "evaluations": max(row["evaluations"] for row in rows),
        "scipy": reference.evaluations,
    }
    report.show(table, {"optimum": reference.best, "worst": worst, "results": rows}, width=120)
    good = all(
        row["gradient_off"] <= GRADIENT
        and row["loss_off"] <= LOSS
        and row["evaluations"] <= MORE_EVALUATIONS * reference.evaluations
        for row in rows
    )
    if arguments.ordered:
        good &= all(len({row["digest"] for row in rows if row["shards"] == s["shards"]}) == 1 for s in rows)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
