"""A test set with a gap: the model is written, one line says what failed, and a resumed run only evaluates."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dbelief
from dbelief.registry import embedded_available

from .conftest import Operator, child, parameters, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: gap
model: {layers: [{dense: 2}], loss: softmax_cross_entropy}
data: {source: parquet, files: train.parquet, validation_files: held.parquet, test_files: test.parquet, kind: classes,
       target: label, memory: 1}
strategy: {name: downpour, batch: 20, rule: {name: adagrad, rate: 0.1}, warm_start: null}
limits: {epochs: 2}
shards: 1
replicas: 2
"""
ROWS, GROUP, ROW = 300, 100, 217


def write_table(path: Path, seed: int, gap: int | None = None) -> None:
    x = np.random.default_rng(seed).normal(size=(ROWS, 2))
    second = [None if row == gap else value for row, value in enumerate(x[:, 1].tolist())]
    table = pa.table({"x1": x[:, 0], "x2": pa.array(second, pa.float64()), "label": (x[:, 0] > 0).astype(np.int64)})
    pq.write_table(table, path, row_group_size=GROUP)


@pytest.mark.parametrize("streamed", ["true", "false"])
def test_the_model_is_there_and_the_evaluation_is_repeated(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, streamed: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(operator.folder / "cache"))
    for seed, name in enumerate(("train", "held")):
        write_table(operator.folder / f"{name}.parquet", seed)
    write_table(operator.folder / "test.parquet", 2, gap=ROW)
    job, run = str(operator.write_job(JOB)), operator.folder / "runs" / "gap"
    words = ("--quiet", "--set", f"data.streamed={streamed}")
    first = operator.start("first", "train", job, *words)
    if streamed == "false":  # all of it is read before a process starts
        assert first.ends() == 2
        assert f"row {ROW % GROUP}" in first.log.read_text()
        return
    assert first.ends() == 3
    last = first.log.read_text().splitlines()[-1]
    assert f"test.parquet, row group {ROW // GROUP}, column 'x2', row {ROW % GROUP} (from 0): is missing" in last
    assert "the model is written" in last
    assert dbelief.load_model(run).outputs(np.zeros((1, 2), np.float32)).shape == (1, 2)
    held = parameters(run)

    assert operator.start("again", "train", "--resume", job, *words).ends() == 3
    write_table(operator.folder / "test.parquet", 2)
    assert operator.start("mended", "train", "--resume", job, *words).ends() == 0
    summary = operator.summary("gap")
    assert summary["samples"] == 2 * ROWS
    assert summary["test_accuracy"] > 0.8
    assert summary["evaluation_failed"] == {}
    assert parameters(run) == held


SOURCE = """
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


class Waves:
    units = {"part 0": 200, "part 1": 200}

    def read(self, name):
        x = np.random.default_rng(len(name)).normal(size=(200, 2)).astype(np.float32)
        return x, (x[:, 0] > 0).astype(np.int64)


class Asked(Waves):
    units = {"asked": 200}

    def read(self, name):
        until_s = time.monotonic() + 300
        while (HERE / "runs/slow/model.safetensors").exists() and not (HERE / "go").exists():
            (HERE / "reading").touch()
            assert time.monotonic() < until_s
            time.sleep(0.05)
        return super().read(name)
"""
SLOW = """
name: slow
model: {layers: [{dense: 2}], loss: softmax_cross_entropy}
data: {source: python, train: "waves.py:Waves", validation: null, test: "waves.py:Asked", classes: 2}
strategy: {name: downpour, batch: 20, rule: {name: adagrad, rate: 0.1}, warm_start: null}
limits: {epochs: 2}
shards: 1
replicas: 1
"""


@pytest.mark.skipif(not embedded_available(), reason="without an embedded registry a coordinator's death is the end")
def test_a_coordinator_is_killed_between_the_model_and_its_evaluation(operator: Operator) -> None:
    (operator.folder / "waves.py").write_text(SOURCE)
    run = operator.folder / "runs" / "slow"
    train = operator.start("train", "train", "--quiet", str(operator.write_job(SLOW)))
    reading = operator.folder / "reading"
    wait_for(lambda: reading.exists() or train.process.poll() is not None, "the evaluation")
    held = parameters(run)
    assert operator.summary("slow")["test_accuracy"] is None
    os.kill(child(train.process.pid, "dbelief coordinator"), signal.SIGKILL)
    train.said("(coordinator was killed by SIGKILL; started again)")
    (operator.folder / "go").touch()
    assert train.ends() == 0
    summary = operator.summary("slow")
    assert summary["samples"] == 2 * 400
    assert summary["test_accuracy"] > 0.8
    assert parameters(run) == held
