"""`dbelief.train`: a job of plain values, and the run that it returns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dbelief
from dbelief.data import load
from dbelief.errors import JobError

pytestmark = pytest.mark.processes

INPUTS = np.random.default_rng(0).standard_normal((200, 2)).astype(np.float32)
JOB = {
    "name": "sides",
    "model": {"layers": [{"dense": 2}], "loss": "softmax_cross_entropy"},
    "data": {"source": "npz", "file": "points.npz"},
    "strategy": {"name": "downpour", "batch": 10, "rule": {"name": "sgd", "rate": 0.5}},
    "limits": {"epochs": 40},
    "replicas": 2,
    "shards": 1,
}


def test_a_job_of_plain_values_returns_a_run_with_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "others.npz", inputs=INPUTS, targets=(INPUTS[:, 0] > INPUTS[:, 1]).astype(np.int64))
    monkeypatch.chdir(tmp_path)
    without_limits = {name: value for name, value in JOB.items() if name != "limits"}
    run = dbelief.train(without_limits, limits__epochs=5, data__file="others.npz")
    assert run.folder == tmp_path / "runs" / "sides"
    assert run.summary.samples == 5 * 160
    trained = run.load_model()
    test = load(trained.job.data, trained.job.folder).test
    assert test is not None
    assert np.mean(trained.predict(test.inputs) == test.targets) == run.summary.test_accuracy


def test_values_that_are_no_job_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match=r"strategy\.rate"):
        dbelief.train({**JOB, "strategy": {"name": "downpour", "batch": 10, "rate": 1}})
    with pytest.raises(JobError, match=r"^job: limits\.epoch: no such field, did you mean epochs\?"):
        dbelief.train(JOB, limits__epoch=5)
    assert not any(tmp_path.iterdir())
