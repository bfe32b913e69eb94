"""Tables with gaps, categories and dates: AUC of a linear model beside scikit-learn's pipeline.

    python -m benchmarks.accuracy.tables [--rows 40000]

Two tables, made from a seed: one like a census, of numbers with gaps and skewed sizes, categories and a date; one like
the Higgs data, of 28 numbers with gaps. The job trains a softmax layer with Sandblaster L-BFGS; scikit-learn a logistic
regression behind the same preparation: the mean for a gap, indicator columns, standardised numbers. Both are trained on
the same rows and tested on the same others. Then the model's prediction of the test file is compared with the
evaluation's accuracy.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, runs

JOB = """
name: table
model: {layers: [{dense: 2}], loss: softmax_cross_entropy}
data:
  source: csv
  file: train.csv
  test_file: test.csv
  kind: classes
  target: label
  validation: 0
  missing: mean
  missing_values: ["?"]
  standardize: true
  categories: CATEGORIES
  dates: DATES
strategy: {name: sandblaster, portion: 2000, history: 10, l2: 1.0e-6, relative_decrease: 1.0e-9, iterations: 300}
evaluate: {metrics: [auc, log_loss]}
shards: 1
replicas: 2
"""
WORK = ["private", "public", "own", "none", "?"]
START = np.datetime64("2015-01-01")


class Made(NamedTuple):
    """A table: names of all columns, of those that are categories, of those that are dates; and its rows."""

    names: list[str]
    categories: list[str]
    dates: list[str]
    rows: list[list[Any]]


def census(rows: int, rng: np.random.Generator) -> Made:
    """A table like a census."""
    age, hours = rng.normal(40, 12, rows).clip(17, 90), rng.normal(38, 10, rows).clip(1, 99)
    gain = np.where(rng.random(rows) < 0.1, rng.lognormal(8, 1, rows), 0.0)
    work, town = rng.integers(0, len(WORK), rows), np.floor(40 * rng.random(rows) ** 2).astype(int)
    day = rng.integers(0, 3650, rows)
    of_town, of_work = rng.normal(0, 0.8, 40), np.array([0.0, 0.4, 0.9, -1.5, -0.3])
    z = 0.04 * (age - 40) + 0.05 * (hours - 38) + 2e-4 * gain + of_work[work] + of_town[town] + 3e-4 * (day - 1800)
    label = (z - 0.8 + rng.logistic(size=rows) > 0).astype(int)
    gaps = rng.random((rows, 2)) < 0.08
    table = [
        [
            "?" if gaps[row, 0] else f"{age[row]:.1f}",
            WORK[work[row]],
            f"town-{town[row]}",
            f"{gain[row]:.0f}",
            "" if gaps[row, 1] else f"{hours[row]:.0f}",
            str(START + day[row]),
            label[row],
        ]
        for row in range(rows)
    ]
    return Made(["age", "work", "town", "gain", "hours", "since", "label"], ["work", "town"], ["since"], table)


def higgs(rows: int, rng: np.random.Generator) -> Made:
    """A table of numbers alone."""
    x = rng.normal(size=(rows, 28)) * np.exp(rng.normal(size=28)) + rng.normal(size=28)
    z = (x - x.mean(axis=0)) / x.std(axis=0) @ rng.normal(0, 0.35, 28)
    label = (z + rng.logistic(size=rows) > 0).astype(int)
    gaps = rng.random(x.shape) < 0.1
    table = [
        [*("" if gap else f"{value:.6g}" for value, gap in zip(x[row], gaps[row], strict=True)), label[row]]
        for row in range(rows)
    ]
    return Made([*(f"x{place}" for place in range(28)), "label"], [], [], table)


def by_scikit_learn(made: Made, cut: int) -> float:
    """Test AUC of the pipeline."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    names, held = made.names, np.array(made.rows, object)
    numeric = [place for place, name in enumerate(names[:-1]) if name not in made.categories]
    for place in numeric:
        column = held[:, place]
        if names[place] in made.dates:
            held[:, place] = column.astype("datetime64[D]").astype(float)
        else:
            held[:, place] = [np.nan if value in ("", "?") else float(value) for value in column]
    texts = [place for place, name in enumerate(names) if name in made.categories]
    prepared = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numeric),
            ("texts", OneHotEncoder(handle_unknown="ignore"), texts),
        ]
    )
    model = make_pipeline(prepared, LogisticRegression(C=1e3, max_iter=2000))
    labels = held[:, -1].astype(int)
    model.fit(held[:cut, :-1], labels[:cut])
    return float(roc_auc_score(labels[cut:], model.predict_proba(held[cut:, :-1])[:, 1]))


def by_job(made: Made, cut: int) -> dict[str, float]:
    """Test AUC and accuracy of the job, and the accuracy of what `dbelief predict` prints for the test file."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for name, rows in (("train", made.rows[:cut]), ("test", made.rows[cut:])):
            with open(folder / f"{name}.csv", "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(made.names)
                writer.writerows(rows)
        (folder / "job.yaml").write_text(
            JOB.replace("CATEGORIES", json.dumps(made.categories)).replace("DATES", json.dumps(made.dates))
        )
        runs.dbelief(folder, "train", "--quiet", "job.yaml")
        summary = json.loads((folder / "runs/table/summary.json").read_text())
        predicted = runs.dbelief(folder, "predict", "runs/table", "test.csv").stdout.split()
    right = np.mean([str(row[-1]) == label for row, label in zip(made.rows[cut:], predicted, strict=True)])
    return {"auc": summary["test_metrics"]["auc"], "accuracy": summary["test_accuracy"], "predicted": float(right)}


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    arguments = parser.parse_args()
    shown = Table("table", "AUC", "scikit-learn's AUC", "accuracy", "of predict")
    rows = []
    for make in (census, higgs):
        table = make(arguments.rows, np.random.default_rng(0))
        cut = arguments.rows * 3 // 4
        found = {"table": make.__name__, **by_job(table, cut), "scikit-learn": by_scikit_learn(table, cut)}
        rows.append(found)
        report.progress(found)
        numbers = (found[name] for name in ("auc", "scikit-learn", "accuracy", "predicted"))
        shown.add_row(make.__name__, *(f"{number:.4f}" for number in numbers))
    report.show(shown, {"rows": rows})


if __name__ == "__main__":
    main()
