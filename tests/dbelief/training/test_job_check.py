"""`dbelief job check`, and fields replaced from Python."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dbelief.arrays.backend import select_backend
from dbelief.errors import DataError, JobError, ModelError, NonFinite, UserError
from dbelief.job import Downpour, load_job
from dbelief.launch.train import _as_yaml, _check_script
from dbelief.training.job_check import assemble_job, check_job
from tests.jobs import SGD, dense, small_file
from tests.traced import traced

OWN = {"python": "model.py:Own"}
VALUES = {"source": "synthetic", "kind": "regression", "samples": 50, "features": 3, "noise": 0.1}
TABLE = {"source": "csv", "file": "rows.csv", "kind": "classes", "target": "kind"}
MODEL = """
import numpy as np

class Own:
    def parameters(self, rng):
        return {"w": np.zeros((3, 1), np.float32)}

    def loss_and_gradient(self, views, batch, out):
        out["w"][:] = GRADIENT
        return 1.0
"""


def job_with(folder: Path, gradient: str) -> Path:
    (folder / "model.py").write_text(MODEL.replace("GRADIENT", gradient))
    return small_file(folder, name="own", model=OWN, data=VALUES)


def test_a_gradient_is_computed(tmp_path: Path) -> None:
    assert check_job(job_with(tmp_path, "batch.inputs.sum()"), {})[0].endswith("job own is fine")
    with pytest.raises(ModelError, match=r"first 32 training samples \(inputs float32 of .*\): ValueError"):
        check_job(job_with(tmp_path, "np.zeros((2, 7))"), {})
    with pytest.raises(NonFinite, match="gradient of 'w' holds nan"):
        check_job(job_with(tmp_path, "np.nan"), {})


def test_gradient_summed_over_the_batch_is_reported(tmp_path: Path) -> None:
    assert check_job(job_with(tmp_path, "batch.inputs.mean()"), {})[-1].startswith("strategy: ")
    assert check_job(job_with(tmp_path, "batch.inputs.sum()"), {})[-1].startswith("careful: the gradient of 64 samples")


def test_a_model_over_ranks_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^grid: model Own cannot be cut over ranks"):
        check_job(job_with(tmp_path, "batch.inputs.sum()"), {"grid": "[2]"})
    # 64 x 7 and 7 x 10 weights with a bias each: rank 0 has 3 and 5 neurons, rank 1 has 4 and 5.
    each = [65 * 3 + 8 * 5, 65 * 4 + 8 * 5]
    said = f"ranks: 2 a replica, holding {each[0]} to {each[1]} parameters each"
    assert said in check_job(small_file(tmp_path, model=dense(7, 10), grid=[2]), {})


def test_class_names_are_reported(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,kind\n" + "1,dog\n2,cat\n" * 10)
    lines = check_job(small_file(tmp_path, model=dense(2), data=TABLE), {})
    assert "classes: 0 is 'cat', 1 is 'dog'" in lines
    assert "training samples per class: 8, 8" in lines
    assert not any(line.startswith("note: input") for line in lines)


def test_many_classes_are_reported_as_a_range(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(12), 10)[:-4]
    np.savez(tmp_path / "rows.npz", train_inputs=np.ones((len(labels), 2), np.float32), train_targets=labels)
    job = small_file(tmp_path, model=dense(12), data={"source": "npz", "file": "rows.npz", "validation": 0})
    assert "training samples per class: 5 (class 11) to 9 (class 0)" in check_job(job, {})


def test_inputs_of_very_different_size_are_reported(tmp_path: Path) -> None:
    """The second input is below zero, the third always 0: neither sign nor a constant 0 hides the difference."""
    rows = "".join(f"{place % 2},{-5000 * place},0,{place % 2}\n" for place in range(20))
    (tmp_path / "rows.csv").write_text("near,far,never,kind\n" + rows)
    job = small_file(tmp_path, model=dense(2), data=TABLE)
    note = next(line for line in check_job(job, {}) if line.startswith("note: '"))
    assert re.match(r"note: 'far' reaches [0-9.]+e\+04, 'near' only 1; ", note), note
    (tmp_path / "rows.csv").write_text(rows)
    bare = {"data.header": "false", "data.target": "4"}
    line = check_job(job, bare)
    assert any(re.match(r"note: input 2 reaches [0-9.]+e\+04, input 1 only 1 \(counted ", one) for one in line)
    (tmp_path / "rows.csv").write_text("".join(f"0,-0.0,0,{place % 2}\n" for place in range(20)))
    assert not [one for one in check_job(job, bare) if "only" in one]


def test_how_a_table_was_read_is_reported(tmp_path: Path) -> None:
    """The index of pandas, and whole numbers that float32 has not, unless they are standardised; `scale` hides none."""
    rows = "".join(f"{place},{2**24 + place},{place % 5},{place % 2}\n" for place in range(20))
    (tmp_path / "rows.csv").write_text(",time,b,kind\n" + rows)
    job = small_file(tmp_path, model=dense(2), data={**TABLE, "scale": 0.001})
    index = f"note: {tmp_path / 'rows.csv'}: column 1 ('') is no input: it was written as the index of a pandas frame"
    lines = check_job(job, {})
    assert any(line.startswith(index) for line in lines)
    assert any(line.startswith("note: 'time', up to 1.68e+07: whole numbers above 2^24") for line in lines)
    lines = check_job(job, {"data.scale": "1", "data.standardize": "true"})
    assert any(line.startswith(index) for line in lines)
    assert not any("2^24" in line for line in lines)


ROWS = "".join(f"{row % 2} {row + 1}:{5000 if row == 7 else 1} 1048576:2\n" for row in range(400))


def wide_job(folder: Path, model: dict[str, Any], features: int) -> Path:
    (folder / "rows.txt").write_text(ROWS)
    data = {"source": "libsvm", "train": "rows.txt", "features": features}
    return small_file(folder, model=model, data=data, strategy={**SGD, "batch": 200})


def test_sparse_rows_are_checked_without_dense_ones(tmp_path: Path) -> None:
    """400 rows of 2^20 columns would be 1.6 GiB, and the first mini-batch half of that; a vector has 8 MiB."""
    job = wide_job(tmp_path, dense(2), 1 << 20)
    lines, _, peak = traced(lambda: check_job(job, {}))
    assert peak < 100e6
    assert "data: 360 training, 40 validation, 0 test samples" in lines
    assert any(line.startswith("note: input 8 reaches 5e+03, input 1 only 1 ") for line in lines)


def test_arrays_that_a_model_would_need_are_refused_where_they_are_large(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("GRADIENT", "float(batch.inputs.mean())"))
    job = wide_job(tmp_path, OWN, 1 << 22)
    with pytest.raises(DataError, match=r"^a mini-batch of 200 samples of 4,194,304 features is 3.1 GiB as dense rows"):
        check_job(job, {})
    assert check_job(job, {"strategy.batch": "1"})[0].endswith("job small is fine")
    layers = "{layers: [{dense: 2}], loss: softmax_cross_entropy}"
    assert check_job(job, {"model": layers})[0].endswith("job small is fine")
    with pytest.raises(DataError, match=r"^a mini-batch of 200 samples"):
        check_job(job, {"model": layers, "grid": "[2]"})


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        ({}, "warm start: one replica trains alone until 5 % of all samples (strategy.warm_start)"),
        (
            {"warm_start": {"samples": 1000, "loss": 0.5}},
            "until 1,000 samples or a mean loss of 0.5 (strategy.warm_start)",
        ),
        ({"warm_start": None}, ""),
    ],
)
def test_the_warm_start_is_reported(strategy: dict[str, Any], line: str, tmp_path: Path) -> None:
    job = small_file(tmp_path, strategy={**SGD, **strategy}, limits={"epochs": 1}, replicas=2)
    said = [one for one in check_job(job, {}) if one.startswith("warm start")]
    assert [one.endswith(line) for one in said] == ([True] if line else [])


def test_values_of_python_are_fields_of_a_job(tmp_path: Path) -> None:
    values = {
        "strategy.warm_start": None,
        "strategy.rule.rate": 1e-5,
        "record": True,
        "limits": {"epochs": 2},
        "output": Path("elsewhere"),
        "name": "other",
    }
    job = load_job(job_with(tmp_path, "0"), {name: _as_yaml(value) for name, value in values.items()})
    assert isinstance(job.strategy, Downpour)
    assert job.strategy.warm_start is None
    assert job.strategy.rule.rate == 1e-5
    assert job.record
    assert (job.limits.epochs, job.limits.samples) == (2, None)
    assert (str(job.output), job.name) == ("elsewhere", "other")


def test_start_from_is_reported_and_checked(tmp_path: Path) -> None:
    job, run = job_with(tmp_path, "views['w'].sum() / 0.5"), tmp_path / "runs" / "first"
    start = {"start_from": "runs/first"}
    with pytest.raises(ModelError, match=r"^start_from: .*/runs/first is no run folder"):
        check_job(job, start)
    run.mkdir(parents=True)
    small_file(run, model=OWN, data=VALUES)
    for value in (1.0, np.nan):
        save_file({"w": np.full((3, 1), value, np.float32)}, run / "model.safetensors")
        if value == 1:
            assert f"starts from: {run / 'model.safetensors'}" in check_job(job, start)
    with pytest.raises(NonFinite, match="initial value of 'w' holds nan"):
        check_job(job, start)
    with pytest.raises(UserError, match=r"^start_from: .* is moved aside where a new run named first begins"):
        check_job(job, {**start, "name": "first", "output": str(run.parent)})


def script_job(folder: Path) -> Path:
    data = {"source": "script", "train": 60_000, "validation": 500}
    return small_file(folder, name="scripts", model={"source": "script"}, data=data, limits={"epochs": 1}, replicas=2)


@pytest.mark.parametrize(
    ("strategy", "lines"),
    [
        (
            "{name: downpour, batch: 64, rule: {name: add}, warm_start: {samples: 1000}}",
            [
                "strategy: downpour, 2 replicas, mini-batches of 64",
                "warm start: one replica trains alone until 1,000 samples (strategy.warm_start)",
            ],
        ),
        (
            "{name: sync-sgd, form: shards, batch: 16, rule: {name: sgd, rate: 0.1}}",
            ["strategy: sync-sgd, 2 replicas, mini-batches of 16"],
        ),
        ("{name: diloco, steps: 8}", ["strategy: diloco, 2 replicas, mini-batches of 32, 8 in a round"]),
        ("{name: async-easgd, rate: 0.1}", ["strategy: async-easgd, 2 replicas, mini-batches of 32"]),
    ],
)
def test_a_job_for_scripts_is_described_without_its_script(strategy: str, lines: list[str], tmp_path: Path) -> None:
    assert check_job(script_job(tmp_path), {"strategy": strategy}) == [
        f"{tmp_path / 'job.yaml'}: job scripts is fine",
        "model and data: the script's, 60,000 training and 500 validation samples",
        *lines,
    ]


def test_a_job_for_scripts_is_checked(tmp_path: Path) -> None:
    job = script_job(tmp_path)
    with pytest.raises(JobError, match=r"strategy\.clip_norm: must be null with a script"):
        check_job(job, {"strategy.clip_norm": "1"})
    with pytest.raises(JobError, match=r"data\.train: missing; must be a whole number from 1"):
        check_job(job, {"data": "{source: script}"})
    with pytest.raises(ModelError, match="the model of job scripts is the module of its script: run it by `"):
        assemble_job(load_job(job), select_backend("cpu"))


def test_start_of_a_job_for_scripts_is_checked(tmp_path: Path) -> None:
    """As with a model of the job: a run folder that is moved aside is no start."""
    path = script_job(tmp_path)
    job = load_job(path, {"start_from": "runs/scripts", "output": str(tmp_path / "runs")})
    with pytest.raises(UserError, match=r"^start_from: .* is moved aside where a new run named scripts begins"):
        _check_script(job, path, resume=False)
    _check_script(job, path, resume=True)


def test_check_of_a_job_for_scripts_includes_its_start(tmp_path: Path) -> None:
    start = {"start_from": "runs/scripts", "output": str(tmp_path / "runs")}
    with pytest.raises(UserError, match=r"^start_from: .* is moved aside where a new run named scripts begins"):
        check_job(script_job(tmp_path), start)
