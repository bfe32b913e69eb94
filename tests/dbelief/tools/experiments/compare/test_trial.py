"""A failing run is recorded, not raised; with a fake cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dbelief.arrays.backend import select_backend
from dbelief.errors import DbeliefError, Interrupted, RuntimeFailure, UserError
from dbelief.evaluation.evaluate import evaluate
from dbelief.job import ComparisonFile, load_job
from dbelief.tools.experiments.compare import trial
from dbelief.tools.experiments.compare.trial import Examiner, run_trial
from dbelief.training.session import build_model, initial_values

FILE = """
name: digits
base:
  model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
  data: {source: digits}
  limits: {epochs: 2}
strategies: {easgd: {strategy: {name: async-easgd, rate: 0.1}}}
targets: [0.9]
every: {samples: 100}
compute_wait_s: [0.25]
"""


class Cluster:
    """Ends at once, as told."""

    end: Callable[[], tuple[int, Any]]
    more: list[Any]

    def __init__(self, job: Any, job_file: Path, overrides: Any, resume: bool, show: Any, to_workers: Any) -> None:
        self.folder = job.output / job.name
        assert load_job(job_file).digest() == job.anchored().digest()
        Cluster.more = list(to_workers)

    def run(self) -> tuple[int, Any]:
        return Cluster.end()


def trial_of(folder: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[], tuple[int, Any]]) -> Any:
    monkeypatch.setattr(trial, "LocalCluster", Cluster)
    monkeypatch.setattr(Cluster, "end", staticmethod(end), raising=False)
    (folder / "digits.yaml").write_text(FILE)
    found = ComparisonFile(folder / "digits.yaml", folder / "runs")
    return run_trial(found.trials()[0], found.comparison, folder, Examiner())


@pytest.mark.parametrize("error", [RuntimeFailure("no worker is left"), UserError("the model has no such layer")])
def test_exception_becomes_the_trials_result(
    error: DbeliefError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> tuple[int, None]:
        raise error

    record = trial_of(tmp_path, monkeypatch, end)
    assert (record.label, record.failed, record.curve, record.accuracy) == ("easgd", str(error), [], None)
    assert Cluster.more == ["--compute-wait", "0.25"]
    assert not list(tmp_path.glob("copies*"))


def test_an_interruption_ends_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Interrupted, match="stopped by SIGTERM; the same command continues"):
        trial_of(tmp_path, monkeypatch, lambda: (130, SimpleNamespace(reason="stopped by SIGTERM")))
    assert not list(tmp_path.glob("copies*"))


def test_the_examiner_evaluates_on_the_test_set(tmp_path: Path) -> None:
    (tmp_path / "digits.yaml").write_text(FILE)
    job, examiner = ComparisonFile(tmp_path / "digits.yaml", tmp_path / "runs").trials()[0].job, Examiner()
    data = examiner.data_of(job)
    assert examiner.data_of(job) is data, "loaded once"
    model, _ = build_model(job, data, select_backend("cpu"))
    layout, values = initial_values(job, model)
    values += 0.01
    assert data.test is not None
    wanted = evaluate(model, layout.views(values), data.test, layout, select_backend("cpu"))[1]
    assert examiner.accuracy(job, values) == wanted
