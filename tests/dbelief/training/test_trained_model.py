"""The trained model of a run folder gives the outputs that its evaluation judges."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

import dbelief
from dbelief.arrays.backend import select_backend
from dbelief.cli.inspect_run import evaluate_run
from dbelief.data import Dataset, load
from dbelief.errors import DataError, ModelError
from dbelief.job import build_job, load_job
from dbelief.rundir.model_metadata import model_metadata
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


def run_of(folder: Path, kind: str, described: bool = True) -> Path:
    """A run folder with the initial values of a small network; `described`: its model has metadata, as now."""
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
    about = model_metadata(job, load(job.data, job.folder).form) if described else {"job": job.name}
    tensors = {name: np.array(values) for name, values in layout.views(flat).items()}
    save_file(tensors, folder / "model.safetensors", about)
    return folder


def load_job_data(folder: Path) -> Dataset:
    job = load_job(folder / "job.yaml", {})
    return load(job.data, job.folder)


def test_classes_are_those_that_evaluation_judges(tmp_path: Path) -> None:
    trained = dbelief.load_model(run_of(tmp_path, "classes"))
    test = load(trained.job.data, trained.job.folder).test
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
    monkeypatch.setattr("dbelief.evaluation.evaluate.BATCH", 3)
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


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_neither_the_data_nor_the_folder_is_needed(tmp_path: Path, kind: str) -> None:
    folder = run_of(tmp_path, kind)
    inputs = np.random.default_rng(0).standard_normal((7, 2))
    found = dbelief.load_model(folder).predict(inputs)
    (folder / "table.csv").unlink()
    np.testing.assert_array_equal(dbelief.load_model(folder).predict(inputs), found)
    alone = tmp_path / "elsewhere" / "alone.safetensors"
    alone.parent.mkdir()
    (folder / "model.safetensors").rename(alone)
    trained = dbelief.load_model(alone)
    np.testing.assert_array_equal(trained.predict(inputs), found)
    assert trained.samples.columns == ("a", "b")


def test_a_model_of_an_earlier_version_takes_its_sizes_from_the_data(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "classes", described=False)
    assert dbelief.load_model(folder).samples == load_job_data(folder).form
    with pytest.raises(
        DataError, match=r"moved\.safetensors: holds no job: it is of another program, or of an earlier"
    ):
        dbelief.load_model(shutil.copy(folder / "model.safetensors", folder / "moved.safetensors"))
    (folder / "table.csv").unlink()
    with pytest.raises(DataError, match=r"no such file; .*does not hold the form of its samples .*the data is needed"):
        dbelief.load_model(folder)


def test_evaluation_on_data_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "classes")
    table = folder / "table.csv"
    table.write_text(table.read_text().replace("mid", "middle"))
    with pytest.raises(DataError, match="data of another kind; now the names of the classes are low, middle, top, not"):
        evaluate_run(folder, "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"model\.safetensors: is no safetensors file, or a damaged one"),
        (b"junk" * 10, r"model\.safetensors: is no safetensors file, or a damaged one"),
        (None, "has no model: the run failed, or has not ended"),
    ],
)
def test_a_run_without_a_whole_model_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = run_of(tmp_path, "classes") / "model.safetensors"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        dbelief.load_model(tmp_path)


def test_a_module_without_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"^a torch module needs torch: pip install 'dbelief\[torch\]' "):
        dbelief.load_model(run_of(tmp_path, "classes"), into=object())


def test_damaged_metadata_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(2, np.float32)}, file, {"job": "x", "job_file": "name: x", "samples": "{}"})
    with pytest.raises(DataError, match=r"model\.safetensors: metadata 'samples': no form of samples"):
        dbelief.load_model(file)


def test_what_is_neither_a_run_nor_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"is neither a run folder with a job\.yaml, such as runs/NAME, nor a model file$"
    ):
        dbelief.load_model(tmp_path)


@pytest.mark.parametrize("shape", [(2, 4), (2,), (1, 3), (2, 3, 1)])
def test_outputs_of_another_shape_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    class Other:
        def last_layer(self, views: Any, batch: Any) -> np.ndarray:
            return np.zeros(shape, np.float32)

    trained = dbelief.load_model(run_of(tmp_path, "classes"))
    object.__setattr__(trained, "model", Other())
    with pytest.raises(
        ModelError, match=rf"last_layer gives an array of shape {re.escape(str(shape))}, expected \(2, 3\)"
    ):
        trained.predict([[1.0, 2.0], [2.0, 1.0]])


def test_a_job_for_a_gpu_may_be_used_without_one(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "classes")
    job = folder / "job.yaml"
    job.write_text(job.read_text().replace("device: cpu", "device: cuda"))
    assert len(dbelief.load_model(folder).predict([[1.0, 2.0]])) == 1


def test_the_model_file_of_a_run_finds_the_source_of_its_model(tmp_path: Path) -> None:
    """By the absolute path in the run's job file."""
    folder = run_of(tmp_path, "classes")
    source = tmp_path / "source"
    source.mkdir()
    (source / "net.py").write_text(
        "import numpy as np\n"
        "def parameters(rng): return {'w': np.zeros((2, 3), np.float32)}\n"
        "def loss_and_gradient(views, batch, out): ...\n"
        "def last_layer(views, batch): return batch.inputs @ views['w']\n"
        "class net:\n"
        "    parameters, last_layer = staticmethod(parameters), staticmethod(last_layer)\n"
        "    loss_and_gradient = staticmethod(loss_and_gradient)\n"
    )
    fields = yaml.safe_load((folder / "job.yaml").read_text())
    about = model_metadata(build_job({**fields, "model": {"python": "net.py:net"}}, source), load_job_data(folder).form)
    (folder / "job.yaml").write_text(yaml.safe_dump({**fields, "model": {"python": f"{source}/net.py:net"}}))
    save_file({"w": np.eye(2, 3, dtype=np.float32)}, folder / "model.safetensors", about)
    assert dbelief.load_model(folder / "model.safetensors").predict([[1.0, 0.0]]).tolist() == ["low"]
    moved = (folder / "model.safetensors").rename(folder / "moved.safetensors")
    with pytest.raises(ModelError, match=r"net\.py: cannot be read"):
        dbelief.load_model(moved)


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    trained = dbelief.load_model(run_of(tmp_path, "classes"))
    object.__setattr__(trained, "model", object())
    with pytest.raises(ModelError, match="has no method last_layer"):
        trained.outputs([[1.0, 2.0]])
