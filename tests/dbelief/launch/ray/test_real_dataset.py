"""Datasets of Ray as the samples of whole jobs, on a real cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dbelief.ray
from dbelief.data import load, sizes
from dbelief.errors import UserError
from dbelief.job import DigitsData, load_job
from dbelief.launch.ray.dataset import written
from tests.dbelief.launch.processes import soon
from tests.dbelief.launch.ray.members import members
from tests.deploy.digits_job import FLOOR, PROGRAM, SHORT, DigitsJob, ends_well

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray's own use of what it deprecates
]

ray = pytest.importorskip("ray")
pyarrow = pytest.importorskip("pyarrow")

JOB = """
name: digits
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: parquet, kind: classes, target: label, test: 0.2{more}}}
strategy: {{name: downpour, batch: 16, rule: {{name: adagrad, rate: 0.05}}}}
limits: {{epochs: {epochs}}}
shards: 2
replicas: 2
snapshots: {{every_s: 1}}
"""
NOTEBOOK = """
import numpy, ray, dbelief
ray.init("auto", log_to_driver=False)

def dataset(file, blocks):
    own = dict(numpy.load(file))
    rows = lambda batch: {"pixels": own["pixels"][batch["id"]], "label": own["label"][batch["id"]]}
    return ray.data.range(len(own["label"]), override_num_blocks=blocks).map_batches(rows).materialize()

dbelief.ray.train("job.yaml", dataset=dataset("train.npz", 5), validation=dataset("validation.npz", 1))
"""
"""Pixels are a column of tensors there."""
ROWS, HELD = 1_257, 180
EPOCHS = 200
"""Of a job that a worker is killed in."""


@pytest.fixture
def digits(job: DigitsJob) -> DigitsJob:
    """A folder with the digits."""
    found = load(DigitsData(source="digits"), Path())
    assert found.train is not None
    assert found.validation is not None
    for name, one in (("train", found.train), ("validation", found.validation)):
        pixels = one.inputs.reshape(len(one), 8, 8).astype(np.float32) / 16
        np.savez(job.folder / f"{name}.npz", pixels=pixels, label=one.targets)
    return job


def folders(job: DigitsJob) -> dict[int, Path]:
    """The folders of written datasets, by their numbers of rows."""
    from pyarrow.parquet import read_table

    return {read_table(one).num_rows: one for one in (job.folder / "runs").glob("dataset-*")}


def train_rows(job: DigitsJob) -> int:
    spec = load_job(job.run / "job.yaml")
    return sizes(spec.data, spec.folder)[0]


def test_a_notebook_trains_on_a_dataset(digits: DigitsJob) -> None:
    from pyarrow.parquet import ParquetFile, read_table, write_table

    (digits.folder / "job.yaml").write_text(JOB.format(epochs=SHORT, more=""))
    ends_well(digits.start(PROGRAM[0], "-c", NOTEBOOK), 120)
    ours, rows = digits.summary, train_rows(digits)
    assert ours["samples"] == SHORT * rows
    assert ours["test_accuracy"] > FLOOR
    found = folders(digits)
    assert found.keys() == {ROWS, HELD}
    table, given = read_table(found[ROWS]), np.load(digits.folder / "train.npz")
    both = [(np.stack(table["pixels"].to_numpy()), table["label"]), (given["pixels"].reshape(ROWS, 64), given["label"])]
    first, second = (sorted(np.column_stack(columns).tolist()) for columns in both)
    assert first == second  # the order of the blocks is Ray's

    units = [ParquetFile(file).metadata.row_group(0).num_rows for file in found[ROWS].iterdir()]
    assert max(units) == ROWS // 40
    for place, file in enumerate(sorted(found[ROWS].iterdir())):  # the same units by another writer
        write_table(read_table(file), digits.folder / f"own-{place}.parquet", row_group_size=max(units))
    write_table(read_table(found[HELD]), digits.folder / "held.parquet")
    more = ", files: own-*.parquet, validation_files: held.parquet"
    (digits.folder / "job.yaml").write_text(JOB.format(epochs=SHORT, more=more))
    ends_well(digits.start(*PROGRAM, "train", "job.yaml", "--on", "ray", "--quiet"), 120)
    assert digits.summary["samples"] == ours["samples"]
    assert abs(digits.summary["test_accuracy"] - ours["test_accuracy"]) < 0.05


def test_a_worker_that_is_killed_takes_no_sample_with_it(digits: DigitsJob) -> None:
    (digits.folder / "job.yaml").write_text(JOB.format(epochs=EPOCHS, more=""))
    training = digits.start(PROGRAM[0], "-c", NOTEBOOK)
    soon(lambda: digits.trains or training.poll() is not None, "it does not train")
    (worker,) = (pid for pid, words in members((digits.run / "address").read_text()).items() if "worker-0" in words)
    os.kill(worker, signal.SIGKILL)
    ends_well(training, 240)
    assert digits.summary["died"] == ["replica 0"]
    assert digits.summary["samples"] == EPOCHS * train_rows(digits)
    assert digits.summary["test_accuracy"] > FLOOR


@pytest.mark.usefixtures("connected")
def test_a_dataset_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.format(epochs=SHORT, more=", files: dataset"))
    job = load_job(tmp_path / "job.yaml", {"output": str(tmp_path / "runs")})

    def stamps(numbers: Iterable[int]) -> dict[Path, int]:
        tables = [pyarrow.table({"x": [n], "label": [n % 2]}) for n in numbers]
        one = ray.data.from_arrow(tables).materialize()
        return {file: file.stat().st_mtime_ns for file in Path(written(job, {"dataset": one})["dataset"]).iterdir()}

    first = stamps(range(4))
    assert len(first) == 4
    assert stamps(range(4)[::-1]) == first
    assert not first.keys() & stamps(range(5)).keys()


def of(**columns: list[Any]) -> Any:
    """A materialised dataset of one block."""
    return ray.data.from_arrow(pyarrow.table(columns)).materialize()


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (lambda: [1, 2], r"dataset is a list, must be a ray.data.Dataset"),
        (lambda: ray.data.range(8).random_shuffle(), r"dataset is lazy: .* pass dataset.materialize\(\)"),
        (lambda: of(x=[], label=[]), r"dataset: there are no rows"),
        (lambda: of(x=[1]), r"dataset: no column is called 'label' \(data.target\)"),
        (lambda: of(x=[1, None], label=[0, 1]), r"dataset, block 0, column 'x', row 1 \(from 0\): is missing"),
    ],
)
def test_a_dataset_that_cannot_be_trained_with(
    dataset: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB.format(epochs=SHORT, more=""))
    with pytest.raises(UserError, match=words):
        dbelief.ray.train("job.yaml", dataset=dataset())
    assert not [*tmp_path.glob("runs/*")], "something is left"


@pytest.mark.usefixtures("connected")
def test_a_job_of_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"name": "x", "model": {"layers": [{"dense": 2}], "loss": "softmax_cross_entropy"}}
    job |= {"data": {"source": "lines", "length": 8}}
    job |= {"strategy": {"name": "downpour", "rule": {"name": "sgd", "rate": 1.0}}}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"datasets of Ray need data: .source: parquet, .* in the job, not lines"):
        dbelief.ray.train(job | {"limits": {"epochs": 1}}, dataset=of(x=[1]))
