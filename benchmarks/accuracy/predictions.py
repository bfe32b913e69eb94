"""Predictions on raw inputs beside the evaluation, sample by sample: digits, IDX, CSV with names of classes, torch.

    DBELIEF_DATA=... python -m benchmarks.accuracy.predictions

Each job is trained shortly. Every test sample is then evaluated alone, which says whether the model's answer is its
label, and is predicted from its raw values. The two agree where the predicted class is the label exactly then.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import tempfile
from pathlib import Path

import numpy as np
from rich.table import Table

import dbelief
from benchmarks.harness import options, report
from dbelief.data import Split, load
from dbelief.evaluation.evaluate import evaluate

LAYERS = "{layers: [{dense: 32}, relu, {dense: OUTPUTS}], loss: softmax_cross_entropy}"
TORCH = """
import torch

from dbelief.nn.torch_model import TorchModel

model = TorchModel(lambda: torch.nn.Linear(64, 10), torch.nn.CrossEntropyLoss())
"""
JOB = """
name: predicted
model: MODEL
data: DATA
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}}
limits: {samples: 6000}
"""


def jobs(folder: Path) -> dict[str, tuple[str, str]]:
    """Model and data of each job; its files are written to the folder."""
    mnist = Path(os.environ["DBELIEF_DATA"]).resolve() / "mnist"
    rng = np.random.default_rng(0)
    with open(folder / "flowers.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sepal", "petal", "species"])
        for number in range(3_000):
            kind = number % 3
            table.writerow(
                [*rng.normal([5 + kind, 1 + kind], 0.7).round(3), ["setosa", "versicolor", "virginica"][kind]]
            )
    (folder / "linear.py").write_text(TORCH)
    found = {
        "digits": (LAYERS.replace("OUTPUTS", "10"), "{source: digits}"),
        "IDX": (LAYERS.replace("OUTPUTS", "10"), f"{{source: idx, folder: {mnist}}}"),
        "CSV": (
            LAYERS.replace("OUTPUTS", "3"),
            "{source: csv, file: flowers.csv, kind: classes, target: species, scale: 0.5, test: 0.4}",
        ),
    }
    if importlib.util.find_spec("torch") is not None:
        found["torch"] = '{python: "linear.py:model"}', "{source: digits}"
    return found


def compared(folder: Path, model: str, data: str) -> dict[str, float]:
    """Samples, those in which both ways agree, and the accuracies of both."""
    (folder / "job.yaml").write_text(JOB.replace("MODEL", model).replace("DATA", data))
    summary = dbelief.train(folder / "job.yaml").summary
    trained = dbelief.load_model("runs/predicted")
    test = load(trained.job.data, trained.job.folder).test
    assert test is not None
    names = np.array(trained.samples.names or range(trained.samples.classes or 0))
    predicted = trained.predict(test.inputs)
    own = trained.model, trained.views
    alone = [
        evaluate(
            *own, Split(test.inputs[n : n + 1], test.targets[n : n + 1], test.scale), trained.layout, trained.backend
        )
        for n in range(len(test))
    ]
    right = names[test.targets] == predicted
    agree = sum(bool(one.accuracy) == bool(is_right) for one, is_right in zip(alone, right, strict=True))
    evaluated = summary.test_accuracy or 0.0
    return {"samples": len(test), "agree": agree, "evaluated": evaluated, "predicted": float(right.mean())}


def main() -> None:
    """Measure, and print the table."""
    options.new_parser(__doc__).parse_args()
    rows = []
    shown = Table("job", "test samples", "agree", "accuracy of the job", "of predict")
    with tempfile.TemporaryDirectory() as text:
        os.environ["DBELIEF_DATA"] = str(Path(os.environ["DBELIEF_DATA"]).resolve())
        os.chdir(text)
        for name, job in jobs(Path(text)).items():
            rows.append({"job": name, **compared(Path(text), *job)})
            counts = f"{rows[-1]['samples']:,}", f"{rows[-1]['agree']:,}"
            shown.add_row(name, *counts, f"{rows[-1]['evaluated']:.4f}", f"{rows[-1]['predicted']:.4f}")
    report.show(shown, {"rows": rows})


if __name__ == "__main__":
    main()
