"""The trained model of a run folder gives the outputs that its evaluation judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dbelief
from dbelief.arrays.backend import select_backend
from dbelief.cli.inspect_run import evaluate_run
from dbelief.data import load
from dbelief.errors import DataError, ModelError
from dbelief.job import load_job
from dbelief.training.session import build_model, initial_values

JOB = """
name: small
model: {{layers: [{{dense: 8}}, relu, {{dense: {outputs}}}], loss: {loss}}}
data: {{source: csv, file: {file}, kind: {kind}, target: y, scale: 0.5}}
strategy: {{name: downpour, batch: 10, rule: {{name: sgd, rate: 0.1}}}}
limits: {{epochs: 1}}
device: cpu
"""
WORDS = ("low", "mid", "top")


def run_of(folder: Path, kind: str) -> Path:
    """A run folder with the initial values of a small network."""
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((60, 2)).round(3)
    named = [WORDS[number % 3] if kind == "classes" else str(number) for number in range(60)]
    lines = [f"{a},{b},{y}" for (a, b), y in zip(inputs, named, strict=True)]
    (folder / "table.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    outputs, loss = (3, "softmax_cross_entropy") if kind == "classes" else (1, "square")
    (folder / "job.yaml").write_text(JOB.format(outputs=outputs, loss=loss, kind=kind, file=folder / "table.csv"))
    job = load_job(folder / "job.yaml", {})
    model, _ = build_model(job, load(job.data, job.folder), select_backend("cpu"))
    layout, flat = initial_values(job, model)
    save_file({name: np.array(values) for name, values in layout.views(flat).items()}, folder / "model.safetensors")
    return folder


def test_classes_are_those_that_evaluation_judges(tmp_path: Path) -> None:
    trained = dbelief.load_model(run_of(tmp_path, "classes"))
    test = trained.data.test
    assert test is not None
    unscaled = test.inputs
    found = trained.predict(unscaled)
    assert set(found) <= set(WORDS)
    right = np.mean(found == np.array(WORDS)[test.targets])
    assert right == pytest.approx(evaluate_run(tmp_path, "test")["accuracy"])
    assert (trained.outputs(unscaled).argmax(1) == [WORDS.index(word) for word in found]).all()


def test_outputs_are_the_formula_on_scaled_inputs_in_any_number_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = dbelief.load_model(str(run_of(tmp_path, "regression")))
    inputs = np.random.default_rng(0).standard_normal((7, 2))
    own: dict[str, Any] = {name: np.asarray(values, np.float64) for name, values in trained.views.items()}
    hidden = np.maximum(0.5 * inputs @ own["dense1.weight"] + own["dense1.bias"], 0)
    expected = hidden @ own["dense2.weight"] + own["dense2.bias"]
    whole = trained.outputs(inputs.tolist())
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(trained.predict(inputs), whole)
    monkeypatch.setattr("dbelief.training.trained_model.BATCH", 3)
    np.testing.assert_allclose(trained.outputs(inputs), whole, rtol=1e-5, atol=1e-6)
    assert trained.outputs(np.zeros((0, 2))).shape == (0, 1)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([1.0, 2.0], r"inputs have shape \(2,\), expected \(n, 2\) for job small"),
        ([[1.0, 2.0, 3.0]], r"inputs have shape \(1, 3\), expected \(n, 2\)"),
        ([["a", "b"]], "inputs are <U1, must be numbers"),
        ([[0.0, 1.0], [np.nan, 1.0]], "inputs: sample 1 has a value that is not finite"),
    ],
)
def test_wrong_inputs_are_refused(tmp_path: Path, inputs: Any, message: str) -> None:
    trained = dbelief.load_model(run_of(tmp_path, "classes"))
    with pytest.raises(DataError, match=message):
        trained.predict(inputs)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a run folder with a job\.yaml, such as runs/NAME$"):
        dbelief.load_model(tmp_path)


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    trained = dbelief.load_model(run_of(tmp_path, "classes"))
    object.__setattr__(trained, "model", object())
    with pytest.raises(ModelError, match="has no method last_layer"):
        trained.outputs([[1.0, 2.0]])
