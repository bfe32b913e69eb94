"""Whole jobs whose layers read tables: as a plain program with dense matrices, and with several replicas.

ALGORITHMS: Downpour SGD with one replica is SGD (DistBelief, section 4.1), rows of tables too.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import dbelief
from dbelief.cli.inspect_run import evaluate_run, predict
from dbelief.data import load
from dbelief.data.bags import read_libsvm
from dbelief.errors import DataError, ModelError
from dbelief.job import parse_job
from dbelief.rundir.events import read_events
from dbelief.sparse.table import number_tables

from .in_process import whole_job

SAMPLES, KEYS, BATCH, EPOCHS = 160, 24, 16, 4
JOB = """
name: machine
model: {layers: [{fm: {factors: v, linear: w}}], loss: logistic}
data: {source: bags, format: libsvm, files: rows.svm, validation: 30, test: 0.2}
strategy: {name: downpour, batch: 16, lease: 16, rule: {name: sgd, rate: 0.5}, warm_start: null}
schedule: {kind: step, every: 100, factor: 0.5}
limits: {epochs: 4}
evaluate: {every: 100000, metrics: [auc]}
tables:
  v: {width: 3, rule: {name: adagrad, rate: 0.2, a0: 0.1}, init: uniform(0.5), buckets: 3}
  w: {width: 1, rule: {name: sgd, rate: 0.25}, init: zeros}
shards: 2
seed: 3
threads: 1
"""
STREAMED = JOB.replace("validation: 30", "validation: 2, streamed: true, unit: 16")
"""Units are mini-batches: all leases are of complete units."""


def write(folder: Path) -> None:
    """Samples of four keys, whose weights decide the class."""
    rng = np.random.default_rng(1)
    keys = np.stack([rng.permutation(KEYS)[:4] for _ in range(SAMPLES)])
    values = rng.integers(1, 4, keys.shape) / 2
    labels = ((values * rng.standard_normal(KEYS)[keys]).sum(axis=1) > 0).tolist()
    lines = [
        f"{2 * label - 1} " + " ".join(f"{key - 5}:{value}" for key, value in zip(*row, strict=True))
        for label, *row in zip(labels, keys.tolist(), values.tolist(), strict=True)
    ]
    (folder / "rows.svm").write_text("\n".join(lines))


def plain(text: str, folder: Path) -> tuple[float, float]:
    """Bias, and mean loss of the test set, of the same job in float64: a row of a matrix for each key."""
    job = parse_job(text, folder, "job")
    data = load(job.data, folder)
    assert data.train is not None
    x, y = list[np.ndarray](), list[np.ndarray]()
    for split in (data.train, data.test):
        assert split is not None
        bags, rows = split.inputs.columns["features"], np.zeros((len(split), KEYS))
        np.add.at(rows, (np.repeat(np.arange(len(split)), np.diff(bags.indptr)), bags.keys + 5), bags.values)
        x.append(rows)
        y.append(split.targets)
    v, w = (table.initial(np.arange(KEYS) - 5).astype(np.float64) for table in number_tables(job.tables, job.seed, 1))
    bias, squares, done = 0.0, np.full_like(v, 0.1), 0

    def logits(rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = bias + rows @ w[:, 0] + ((rows @ v) ** 2 - rows**2 @ v**2).sum(axis=1) / 2
        return found

    for epoch in range(EPOCHS):
        order = data.train.order(job.seed, epoch)[0 : len(x[0])]
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            rows, factor = x[0][some], 0.5 ** (done // 100)
            slope = ((1 / (1 + np.exp(-logits(rows)))) - y[0][some])[:, None] / len(some)
            of_v = rows.T @ (slope * (rows @ v)) - (rows**2).T @ slope * v
            squares += of_v**2
            v -= factor * 0.2 * of_v / np.sqrt(squares)
            w -= factor * 0.25 * rows.T @ slope
            bias -= factor * 0.5 * slope.sum()
            done += len(some)
    z = logits(x[1])
    return bias, float(np.logaddexp(0, np.where(y[1] == 1, -z, z)).mean())


@pytest.mark.parametrize("text", [JOB, STREAMED], ids=["in memory", "streamed"])
def test_one_replica_is_the_plain_program(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adagrad and SGD, with rates of their own that follow the schedule; rows are on two shards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path)
    run = whole_job(text, tmp_path, monkeypatch)
    bias, loss = plain(text, tmp_path)
    assert load_file(run / "model.safetensors")["fm1.bias"][0] == pytest.approx(bias, abs=1e-5)
    found = [event for event in read_events(run / "events.jsonl") if event["event"] == "evaluation"]
    assert found[-1]["set"] == "test"
    assert found[-1]["loss"] == pytest.approx(loss, rel=1e-5)
    assert 0.5 < found[-1]["metrics"]["auc"] <= 1
    (run / "job.yaml").write_text(text.replace("rows.svm", str(tmp_path / "rows.svm")))
    again = evaluate_run(run, "test")
    assert again["loss"] == pytest.approx(found[-1]["loss"], rel=1e-6)
    assert again["metrics"]["auc"] == pytest.approx(found[-1]["metrics"]["auc"], rel=1e-6)
    check_new_samples(run, again)
    moved = shutil.copy(run / "model.safetensors", tmp_path / "moved.safetensors")
    says = f"^job machine: its model reads rows of tables, which {moved} does not have: name the folder of the run, "
    with pytest.raises(ModelError, match=says):
        dbelief.load_model(moved)


def check_new_samples(run: Path, evaluated: dict[str, Any]) -> None:
    """Predictions of samples without labels are those that an evaluation judges; unknown keys have initial rows."""
    trained = dbelief.load_model(run / "model.safetensors")
    test = load(trained.job.data, run).test
    assert test is not None
    bags, lines = test.inputs.columns["features"], list[str]()
    for first, stop in pairwise(bags.indptr.tolist()):
        pairs = zip(bags.keys[first:stop].tolist(), bags.values[first:stop].tolist(), strict=True)
        lines.append(" ".join(f"{key}:{value}" for key, value in pairs))
    new = run / "new.svm"
    new.write_text("\n".join([*lines, "777:2 -777:0.5"]))
    names, *rows = predict(run, new, with_outputs=True)
    assert names == ["class", "-1", "1"]
    right = np.mean([row[0] == ("-1", "1")[label] for row, label in zip(rows, test.targets.tolist(), strict=False)])
    assert right == pytest.approx(evaluated["accuracy"])
    v, w = (table.initial(np.array([777, -777])) for table in number_tables(trained.job.tables, 3, 1))
    assert float(rows[-1][2]) == pytest.approx(
        trained.views["fm1.bias"][0] + v[0] @ v[1] + [2, 0.5] @ w[:, 0], abs=1e-6
    )
    batch = next(iter(read_libsvm(run.parent / "rows.svm", 5)))
    assert trained.predict(batch).tolist() == [row[0] for row in predict(run, run.parent / "rows.svm", False)][:5]
    for wrong, says in [
        (np.zeros((1, 0)), "inputs are ndarray, must be a SparseBatch of dbelief.data.bags for job machine"),
        (
            replace(batch, bags={"f": batch.bags["features"]}),
            "inputs have no column 'features', which job machine reads: f",
        ),
    ]:
        with pytest.raises(DataError, match=says):
            trained.outputs(wrong)


@pytest.mark.parametrize(
    "strategy",
    [
        "{name: sync-sgd, form: shards, batch: 16, rule: {name: sgd, rate: 0.5}}",
        "{name: downpour, staleness: 1, batch: 16, rule: {name: sgd, rate: 0.5}, warm_start: null}",
    ],
)
def test_several_replicas_train(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    job = re.sub("strategy: .*", f"strategy: {strategy}", JOB)
    job = job.replace("epochs: 4", "epochs: 12").replace("every: 100,", "every: 100000,") + "replicas: 2\n"
    run = whole_job(job, tmp_path, monkeypatch)
    (evaluated,) = [event for event in read_events(run / "events.jsonl") if event.get("set") == "test"]
    assert evaluated["loss"] < 0.9 * np.log(2)
