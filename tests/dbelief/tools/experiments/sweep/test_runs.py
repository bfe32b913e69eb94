"""Runs of a sweep, their order and results; no process is started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dbelief.errors import JobError
from dbelief.job import load_job
from dbelief.rundir.summary import write_summary
from dbelief.tools.experiments.sweep import runs
from dbelief.tools.experiments.sweep.runs import run_sweep

JOB = """
name: small
model: {python: "model.py:Model"}
data: {source: csv, file: a.csv, kind: classes, target: b}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {samples: 5000}
"""
SUMMARY: dict[str, Any] = {
    "job": "small", "seed": 0, "reason": "5,000 samples trained", "state": "done",
    "test_accuracy": 0.5, "test_loss": 1.0, "validation_accuracy": None, "validation_loss": None,
    "samples": 5000, "samples_per_replica": {"0": 5000}, "epochs": 1.0, "steps": 100, "pushes": 100,
    "pushes_trained_twice": 0, "staleness_mean": 0.0, "wall_s": 2.5, "replicas": 1, "shards": 2, "members_lost": 0,
    "parameters": 10,
}  # fmt: skip


class Trains:
    """Stands for `dbelief train` processes; each ends when it is looked at for the third time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.most = 0
        self.interrupted = Event()
        self.accuracy: Callable[[float], float] = lambda rate: 1 - rate
        self.codes: dict[str, int] = {}
        self.on_begin: Callable[[str], None] = lambda name: None
        self._living: set[str] = set()
        trains = self

        class Child:
            def __init__(self, name: str, arguments: list[str], log: Path) -> None:
                self.name, self.arguments, self.log = name, arguments, log
                self.looks, self.asked, self.process = 0, False, None

            def start(self) -> None:
                trains.begun.append(self.name)
                trains._living.add(self.name)
                trains.most = max(trains.most, len(trains._living))
                trains.on_begin(self.name)

            @property
            def code(self) -> int | None:
                self.looks += 1
                if self.asked:
                    trains._living.discard(self.name)
                    return -15
                if self.looks < 3 or trains.interrupted.is_set():
                    return None
                trains._living.discard(self.name)
                code = trains.codes.get(self.name, 0)
                if code == 0:
                    trains.leave(self.arguments)
                return code

            def ask_to_end(self) -> bool:
                self.asked = True
                return True

            def last_words(self) -> str:
                return "Error: the disk is full"

        @contextmanager
        def signals() -> Any:
            yield self.interrupted

        monkeypatch.setattr(runs, "ChildProcess", Child)
        monkeypatch.setattr(runs, "LOOK_S", 0.0)
        monkeypatch.setattr(runs, "interrupt_event", signals)

    def leave(self, arguments: list[str]) -> None:
        """What a run that came to its end leaves in its folder."""
        fields = dict(text.split("=", 1) for text in arguments if "=" in text)
        job = load_job(Path(arguments[2]), fields)
        folder = Path(job.output) / job.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.yaml").write_text(job.anchored().to_yaml())
        write_summary(folder / "summary.json", {**SUMMARY, "test_accuracy": self.accuracy(job.strategy.rule.rate)})


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch) -> Trains:
    return Trains(monkeypatch)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return found


def test_several_at_a_time(trains: Trains, job: Path, tmp_path: Path) -> None:
    assert run_sweep(job, {"lr": "0.1,0.2,0.3,0.4,0.5"}, at_once=3) == 0
    assert trains.most == 3
    assert len(told(tmp_path / "runs" / "small-sweep")["runs"]) == 5


def test_a_failed_run_is_a_row_and_begins_anew_next_time(trains: Trains, job: Path, tmp_path: Path) -> None:
    trains.codes = {"lr-0.1": 1}
    assert run_sweep(job, {"lr": "0.1,0.2"}) == 0
    failed, done = told(tmp_path / "runs" / "small-sweep")["runs"]
    assert (failed["state"], failed["reason"], failed["samples"]) == ("failed", "the disk is full", None)
    assert done["state"] == "done"
    trains.codes = {}
    run_sweep(job, {"lr": "0.1,0.2"})
    assert trains.begun == ["lr-0.1", "lr-0.2", "lr-0.1"]


def test_old_summary_is_not_used_for_a_failed_run(trains: Trains, job: Path, tmp_path: Path) -> None:
    run_sweep(job, {"lr": "0.1"})
    job.write_text(JOB.replace("5000", "6000"))
    trains.codes = {"lr-0.1": 2}
    os.utime(tmp_path / "runs" / "small-sweep" / "lr-0.1" / "summary.json", (0, 0))
    assert run_sweep(job, {"lr": "0.1"}) == 1
    (row,) = told(tmp_path / "runs" / "small-sweep")["runs"]
    assert (row["state"], row["reason"], row["test_accuracy"]) == ("failed", "the disk is full", None)


def test_ctrl_c_stops_running_jobs_and_starts_no_more(
    trains: Trains, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trains.on_begin = lambda name: trains.interrupted.set() if name == "lr-0.2" else None
    assert run_sweep(job, {"lr": "0.1,0.2,0.3,0.4"}) == 130
    assert trains.begun == ["lr-0.1", "lr-0.2"]
    rows = told(tmp_path / "runs" / "small-sweep")["runs"]
    assert [(row["state"], row["run"]) for row in rows] == [("done", "lr-0.1"), ("stopped", "lr-0.2")]
    shown = capsys.readouterr()
    assert "2 of 4 runs were not begun" in shown.err
    assert "* best by test accuracy: lr=0.1" in shown.out


def test_invalid_combination_is_refused_before_any_run(trains: Trains, job: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^strategy\.n_push=2 strategy\.staleness=0: .*: 0 needs n_push 1"):
        run_sweep(job, {"strategy.n_push": "1,2", "strategy.staleness": "null,0"})
    assert trains.begun == []
    assert not (tmp_path / "runs").exists()
