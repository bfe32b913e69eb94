"""The run of a job with delays: its folder, its end, and what it refuses."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.harness.delay_traces import drawn
from dbelief.cli.inspect_run import evaluate_run
from dbelief.cli.main import main
from dbelief.errors import DataError, UserError
from dbelief.job import Job, load_job
from dbelief.launch.train import run_job
from dbelief.rundir.events import read_events
from dbelief.rundir.result import read_model
from dbelief.rundir.summary import Summary
from dbelief.simulate.replay.delays import DOWNPOUR, ROUNDS
from dbelief.simulate.replay.run import DelayedJob
from dbelief.training.session import build_model, initial_values
from tests.equivalence.delayed import trained
from tests.equivalence.harness import HOST
from tests.jobs import small_file

DIGITS: dict[str, Any] = {"name": "downpour", "batch": 16, "rule": {"name": "adagrad", "rate": 0.03}}
DILOCO = {"name": "diloco", "batch": 8, "steps": 4, "inner": {"name": "sgd", "rate": 0.05}}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file_of(folder: Path, kind: str = DOWNPOUR, replicas: int = 5, **fields: Any) -> Path:
    """A job file whose delays are those of so many replicas."""
    drawn(kind, replicas, 40 * replicas).write(folder / "d.npz")
    usual = {"strategy": DIGITS if kind == DOWNPOUR else DILOCO, "limits": {"epochs": 2}, "delays": "d.npz"}
    return small_file(folder, **usual | fields)


def run(file: Path, **options: Any) -> tuple[int, Summary, Path]:
    return DelayedJob.of(load_job(file)).run(**options)


def test_a_run_has_a_folder_as_any_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shown: list[dict[str, Any]] = []
    drawings: list[tuple[Path, str]] = []
    code, summary, folder = run(
        file_of(tmp_path),
        show=lambda status: shown.append(dict(status)),
        draw=lambda path, title: drawings.append((path, title)),
    )
    assert code == 0
    assert folder == tmp_path / "runs" / "small"
    assert f"5 replicas, as {tmp_path}/d.npz has them" in caplog.text
    assert (summary.state, summary.reason, summary.trained) == ("done", "2,514 samples trained", True)
    assert (summary.replicas, summary.samples, sum(summary.samples_per_replica.values())) == (5, 2514, 2514)
    assert summary.staleness_mean is not None
    assert 1 < summary.staleness_mean < 6
    assert summary.test_accuracy is not None
    assert summary.test_accuracy > 0.8
    assert summary.delays is not None
    assert (summary.delays.events, summary.delays.passes) == (5 + 2 * 200, 1)
    assert sum(summary.delays.staleness) == summary.pushes == 158
    assert json.loads((folder / "summary.json").read_text())["pushes"] == summary.pushes
    kinds = [event["event"] for event in read_events(folder / "events.jsonl")]
    assert kinds[0] == "state"
    assert {"progress", "evaluation", "warm_start"} <= set(kinds)
    assert load_job(folder / "job.yaml").delays == str(tmp_path / "d.npz")
    assert load_job(folder / "job.yaml").replicas == 5
    assert drawings == [(folder, "small")]
    assert (shown[0]["state"], shown[-1]["state"], len(shown[0]["members"])) == ("training", "done", 5)
    found = evaluate_run(folder, "test")
    assert (found["loss"], found["accuracy"]) == (summary.test_loss, summary.test_accuracy)


def parameters_of(job: Job, folder: Path) -> np.ndarray:
    from dbelief.data import load

    layout, out = initial_values(job, build_model(job, load(job.data, job.folder), HOST)[0])
    read_model(folder / "model.safetensors", layout, out, folder)
    return out


def test_the_model_is_what_the_replay_has_trained(tmp_path: Path) -> None:
    file = file_of(tmp_path, ROUNDS, limits={"samples": 700})
    _, summary, folder = run(file)
    job = load_job(file)
    values, replay = trained(job, DelayedJob.of(job).trace)
    assert np.array_equal(parameters_of(job, folder), values)
    assert summary.rounds is not None
    assert summary.rounds.rounds == replay.training.progress.rounds == 5  # the last one is not full


def test_the_best_parameters_are_kept(tmp_path: Path) -> None:
    """At a rate at which the loss on validation data rises again."""
    strategy = {**DIGITS, "rule": {"name": "sgd", "rate": 0.02}}
    file = file_of(
        tmp_path, strategy=strategy, limits={"epochs": 8, "patience": 3}, evaluate={"every": 100, "best_by": None}
    )
    _, summary, folder = run(file)
    losses = [e for e in read_events(folder / "events.jsonl") if e["event"] == "evaluation" and e["set"] != "test"]
    best = max(losses, key=lambda event: (event["accuracy"], -event["loss"]))
    assert (summary.validation_loss, summary.validation_accuracy) == (best["loss"], best["accuracy"])
    found = evaluate_run(folder, "validation")
    assert (found["loss"], found["accuracy"]) == (best["loss"], best["accuracy"])


def test_a_target_ends_the_training(tmp_path: Path) -> None:
    _, summary, _ = run(file_of(tmp_path, limits={"epochs": 50, "validation_accuracy": 0.5}, evaluate={"every": 200}))
    assert summary.reason.startswith("validation accuracy 0.")
    assert summary.reason.endswith("reached its target 0.5")
    assert summary.samples < 10_000


def test_wall_time_ends_the_training(tmp_path: Path) -> None:
    _, summary, _ = run(file_of(tmp_path, limits={"wall_s": 0.05}))
    assert (summary.state, summary.reason) == ("done", "wall time 0.05 s reached")


def test_an_interrupted_run_keeps_what_was_trained(tmp_path: Path) -> None:
    shown: list[object] = []

    def interrupt(status: object) -> None:
        if not shown:
            signal.raise_signal(signal.SIGINT)
        shown.append(status)

    code, summary, folder = run(file_of(tmp_path, limits={"wall_s": 100.0}), show=interrupt)
    assert code == 130
    assert (summary.state, summary.reason, summary.trained) == ("done", "stopped by Ctrl-C", False)
    assert summary.samples > 0
    assert summary.test_loss is None
    assert evaluate_run(folder, "test")["samples"] == 360


def test_a_training_that_diverges_fails(tmp_path: Path) -> None:
    strategy = {**DIGITS, "rule": {"name": "sgd", "rate": 3e38}}
    code, summary, folder = run(file_of(tmp_path, strategy=strategy))
    assert (code, summary.state, summary.trained) == (1, "failed", False)
    assert "samples; try a lower rate" in summary.reason
    assert not (folder / "model.safetensors").exists()


def test_a_high_loss_fails_the_run_where_no_time_is_allowed(tmp_path: Path) -> None:
    strategy = {**DIGITS, "rule": {"name": "sgd", "rate": 1e4}}
    fields: dict[str, Any] = {"strategy": strategy, "limits": {"samples": 1000}}
    assert run(file_of(tmp_path, **fields))[1].state == "done"
    code, summary, _ = run(file_of(tmp_path, **fields, divergence={"seconds": 0.0}))
    assert (code, summary.state) == (1, "failed")
    assert "has been above 10 times its start" in summary.reason


def test_a_file_of_another_job_fails_the_run_by_its_event(tmp_path: Path) -> None:
    file = file_of(tmp_path, strategy={**DIGITS, "n_fetch": 3, "n_push": 3, "warm_start": None})
    drawn(DOWNPOUR, 2, 4, each=(2, 1)).write(tmp_path / "d.npz")
    with pytest.raises(DataError, match=r"d.npz: event 2: replica . fetches more often than it pushes"):
        run(file)
    summary = json.loads((tmp_path / "runs" / "small" / "summary.json").read_text())
    assert (summary["state"], summary["samples"]) == ("failed", 0)


def test_a_file_that_is_missing_is_named_before_a_folder_is_made(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    (tmp_path / "d.npz").unlink()
    with pytest.raises(DataError, match=f"^{tmp_path}/d.npz: no such file$"):
        run_job(file, {}, quiet=True)
    assert not (tmp_path / "runs").exists()


def test_a_check_of_the_job_is_one_of_its_delays(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    said = CliRunner().invoke(main, ["job", "check", str(file)])
    assert said.exit_code == 0
    assert said.output.splitlines()[-1] == "delays: 5 replicas, 405 events, 200 of them pushes"
    drawn(ROUNDS, 2, 4).write(tmp_path / "d.npz")
    wrong = CliRunner().invoke(main, ["job", "check", str(file)])
    assert wrong.exit_code == 2


@pytest.mark.processes
@pytest.mark.long
def test_a_sweep_runs_over_delays(tmp_path: Path) -> None:
    file = file_of(tmp_path, limits={"samples": 300})
    drawn(DOWNPOUR, 2, 40).write(tmp_path / "two.npz")
    said = CliRunner().invoke(main, ["sweep", str(file), "--set", "delays=d.npz,two.npz"])
    assert said.exit_code == 0, said.output
    found = sorted((tmp_path / "runs").rglob("summary.json"))
    assert sorted(json.loads(path.read_text())["replicas"] for path in found) == [2, 5]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"resume": True}, "--resume"),
        ({"page": "127.0.0.1:0"}, "--page"),
        ({"shared_memory": False}, "--no-shared-memory"),
        ({"site": object()}, "--on"),
        ({"script": ["train.py"]}, "dbelief run"),
    ],
)
def test_options_of_processes_are_refused(tmp_path: Path, options: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=f"^{name}: a job with delays is one process on this machine, which begins"):
        run_job(file_of(tmp_path), {}, quiet=True, **options)
