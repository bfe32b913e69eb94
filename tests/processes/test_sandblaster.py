"""Sandblaster L-BFGS by real processes: SciPy's optimum for any numbers of shards and replicas."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.optimize import minimize
from sklearn.datasets import load_svmlight_file

from .conftest import Operator

pytestmark = pytest.mark.processes

DIGITS = """
name: batch
model: {{layers: [{{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: sandblaster, portion: 64, l2: 0.001, iterations: 20, {strategy}}}
evaluate: {{every: null, keep: last}}
shards: {shards}
replicas: {replicas}
"""
A9A = Path(__file__).parents[2] / "examples" / "a9a.yaml"


def assert_reported(operator: Operator, summary: dict[str, Any], iterations: list[dict[str, Any]]) -> None:
    """What is told of a run that has ended: by its folder, and by the command."""
    assert summary["iterations"] == 20
    assert summary["loss"] == iterations[-1]["loss"]
    passes = operator.events("batch", "pass")
    assert [row["number"] for row in passes] == list(range(1, summary["evaluations"] + 1))
    assert summary["backups_launched"] == sum(row["launched"] for row in passes)
    last = json.loads((operator.folder / "runs" / "batch" / "last_pass.json").read_text())
    assert {name: value for name, value in last.items() if name != "runs"}.items() <= passes[-1].items()
    assert sum(run[-1] for run in last["runs"]) == last["bundles"]
    assert (operator.folder / "runs" / "batch" / "last_pass.png").exists()
    report = operator.start("report", "report", "runs/batch", "--output", "drawn")
    assert report.ends() == 0, report.log.read_text()
    assert f"20, in {summary['evaluations']} evaluations" in report.log.read_text()
    assert {path.name for path in (operator.folder / "drawn").iterdir()} == {"curves.png", "last_pass.png"}


@pytest.mark.long
@pytest.mark.parametrize("l1", [0.0, 0.001])
def test_the_result_does_not_depend_on_shards_and_replicas(
    l1: float, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBELIEF_PICTURES", "1")
    found = []
    for shards, replicas in ((2, 1), (2, 3), (3, 2)):
        strategy = f"bundle: 3, ordered: true, l1: {l1}"
        job = operator.write_job(DIGITS.format(shards=shards, replicas=replicas, strategy=strategy))
        summary, iterations = operator.trained("batch", job), operator.events("batch", "iteration")
        assert summary["reason"] == "20 iterations done"
        found.append((iterations, load_file(operator.folder / "runs" / "batch" / "model.safetensors")))
    (one, model), (three, same), (elsewhere, near) = found
    facts = ("loss", "gradient_norm", "step", "evaluations")
    assert [[row[key] for key in facts] for row in one] == [[row[key] for key in facts] for row in three]
    assert elsewhere[0]["gradient_norm"] == pytest.approx(one[0]["gradient_norm"], rel=1e-6)
    assert elsewhere[-1]["loss"] == pytest.approx(one[-1]["loss"], rel=1e-4)
    assert one[-1]["loss"] < 0.25 * one[0]["loss"]
    assert_reported(operator, summary, elsewhere)
    for name, values in model.items():
        assert np.array_equal(values, same[name]), "bit for bit, whoever computed which bundle"
        np.testing.assert_allclose(values, near[name], rtol=0, atol=1e-2)


@pytest.mark.long
def test_it_finds_the_optimum_of_a_convex_problem(operator: Operator) -> None:
    folder = os.environ.get("DBELIEF_DATA")
    if folder is None or not (Path(folder) / "a9a" / "a9a").exists():
        pytest.skip("DBELIEF_DATA names no folder with a9a/a9a")
    summary, iterations = operator.trained("a9a", A9A), operator.events("a9a", "iteration")
    l2 = 1e-3

    inputs, classes = load_svmlight_file(f"{folder}/a9a/a9a", n_features=123)
    signs = np.where(classes > 0, 1.0, -1.0)
    seen: list[float] = []

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (inputs @ w)
        value = float(np.logaddexp(0, -margins).mean() + l2 / 2 * w @ w)
        seen.append(value)
        return value, -(inputs.T @ (signs / (1 + np.exp(margins)))) / len(signs) + l2 * w

    best = minimize(loss, np.zeros(123), jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-10}).fun
    theirs = next(count for count, value in enumerate(seen, 1) if value <= best * (1 + 1e-6))
    ours = next(row["evaluations"] for row in iterations if row["loss"] <= best * (1 + 1e-6))
    model = load_file(operator.folder / "runs" / "a9a" / "model.safetensors")["w"]
    print(f"a9a: loss {loss(model)[0]:.10f}, SciPy's {best:.10f}; within 1e-6 after {ours} evaluations, SciPy {theirs}")
    assert loss(model.astype(np.float64))[0] == pytest.approx(best, rel=1e-6)
    assert ours <= 1.3 * theirs
    assert summary["samples"] >= iterations[-1]["evaluations"] * 32_561
