"""A run's events as trackers get them: each once, in order, and on from where an earlier process ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import RuntimeFailure, UserError
from dbelief.process.clock import SystemClock
from dbelief.process.runtime import runtime
from dbelief.rundir.events import EventLog
from dbelief.telemetry.trackers import NEEDS
from dbelief.tools.track import follow as follow_module
from dbelief.tools.track.follow import STATE, Follower, follow
from tests.dbelief.monitor.test_status import SUMMARY
from tests.jobs import small_file

TRACKED: dict[str, Any] = {"name": "tracked", "track": ["tensorboard"]}


class Recorded:
    """A sink that records its calls, and fails in one of them if told to."""

    def __init__(self, state: Mapping[str, Any], fails: str = "") -> None:
        self.state = dict(state)
        self.calls: list[Any] = []
        self._fails = fails

    def _call(self, name: str, *arguments: Any) -> None:
        if name == self._fails:
            raise OSError("no\nroute")
        self.calls.append((name, *arguments))

    def begin(self, name: str, parameters: Mapping[str, str]) -> None:
        self._call("begin", name, parameters["strategy.rule.rate"])
        self.state["id"] = self.state.get("id", 0) + 1

    def numbers(self, values: Mapping[str, float], samples: int, time_s: float) -> None:
        self._call("numbers", dict(values), samples)

    def flush(self) -> None:
        self._call("flush")

    def picture(self, name: str, file: Path) -> None:
        self._call("picture", name)
        assert file.read_bytes().startswith(b"\x89PNG")

    def model(self, file: Path) -> None:
        self._call("model", file.name)

    def end(self, done: bool, reason: str) -> None:
        self._call("end", done, reason)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with two events."""
    folder = tmp_path / "tracked"
    folder.mkdir()
    small_file(folder, **TRACKED)
    log(folder, 10)
    return folder


def log(run: Path, samples: int) -> None:
    with EventLog(run / "events.jsonl") as events:
        events.write("progress", samples=samples, epoch=0.5, loss=0.25, staleness=None, samples_per_s=7.0, members=1)
        events.write("evaluation", set="validation", samples=samples, loss=0.5, accuracy=None, metrics={"auc": 0.75})


def follower(
    run: Path, fails: Mapping[str, str] | None = None, names: tuple[str, ...] = ("a",)
) -> tuple[Any, list[Recorded]]:
    sinks: list[Recorded] = []

    def open_one(name: str, run: Path, state: Mapping[str, Any]) -> Recorded:
        sinks.append(Recorded(state, (fails or {}).get(name, "")))
        return sinks[-1]

    return Follower(run, names, open_one), sinks


def numbers(sink: Recorded) -> list[Any]:
    return [call[1:] for call in sink.calls if call[0] == "numbers"]


def test_each_event_once_and_on_from_where_another_ended(run: Path) -> None:
    first, (sink,) = follower(run)
    assert sink.calls == [("begin", "tracked", "0.1")]
    assert not first.poll()
    assert numbers(sink) == [
        ({"train/loss": 0.25, "train/epoch": 0.5, "speed/samples_per_s": 7.0, "speed/members": 1.0}, 10),
        ({"validation/loss": 0.5, "validation/auc": 0.75}, 10),
    ]
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "progress", "sam')  # it is being written
    assert not first.poll()
    assert len(numbers(sink)) == 2
    log(run, 20)  # which cuts what is torn
    second, (again,) = follower(run)
    assert not second.poll()
    assert [samples for _, samples in numbers(again)] == [20, 20]
    assert json.loads((run / STATE).read_text())["a"]["state"] == {"id": 2}


def test_the_end_has_pictures_the_model_and_the_reason(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"")
    one, (sink,) = follower(run)
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"state": "done", "reason": "20 samples trained"}))
    assert one.poll()
    one.end()
    names = [call for call in sink.calls if call[0] not in ("numbers", "flush")]
    assert names[1:] == [("picture", "curves"), ("model", "model.safetensors"), ("end", True, "20 samples trained")]


@pytest.mark.parametrize("method", ["begin", "numbers", "flush"])
def test_a_tracker_that_fails_is_left_out(method: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, (bad, good) = follower(run, {"bad": method}, ("bad", "good"))
    one.poll()
    log(run, 20)
    one.poll()
    assert one.names == ["good"]
    assert len(numbers(good)) == 4
    assert len(numbers(bad)) <= 2
    assert [record.message for record in caplog.records] == ["track: bad fails and is left out: OSError: no route"]


def test_what_cannot_be_followed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, never = SystemClock(), runtime.event()
    with pytest.raises(UserError, match=r"is no run folder: it holds no job\.yaml$"):
        follow(tmp_path, (), clock, never)
    monkeypatch.setattr(follow_module, "Follower", lambda run, names: follower(run, {"tensorboard": "flush"}, names)[0])
    with pytest.raises(RuntimeFailure, match=r"no tracker is left$"):
        follow(run, (), clock, never)
    small_file(run, name="tracked")
    with pytest.raises(UserError, match=r"its job file has no track; name trackers by --to$"):
        follow(run, (), clock, never)
    with follow_module._alone(run), pytest.raises(UserError, match=r"another process follows it for trackers$"):
        follow(run, ("mlflow",), clock, never)
    (run / STATE).write_text("{")
    with pytest.raises(UserError, match=r"track\.json: is damaged"):
        follower(run)


def test_a_missing_library_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "tensorboard", "no_such_module")
    with pytest.raises(
        UserError, match=r"^track: tensorboard needs no_such_module: pip install 'dbelief\[tensorboard\]'$"
    ):
        follow(run, (), SystemClock(), runtime.event())


# -- the libraries themselves ---------------------------------------------------------------------------------

TRAINED = {**TRACKED, "track": ["tensorboard", "mlflow"], "limits": {"samples": 600}}
MORE = {"evaluate": {"every": 100, "metrics": ["auc"]}, "snapshots": {"every_s": 0.2}}


@pytest.mark.processes
@pytest.mark.trackers
def test_tensorboard_and_mlflow_read_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a resume too, which goes on in the same run."""
    pytest.importorskip("tensorboardX", reason="the tensorboard extra is not installed")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracking = pytest.importorskip("mlflow.tracking", reason="the mlflow extra is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    small_file(tmp_path, **TRAINED, **MORE)
    train(tmp_path, "job.yaml")
    train(tmp_path, "--resume", "--set", "limits.samples=1200", "job.yaml")
    read = accumulator.EventAccumulator(str(tmp_path / "runs/tracked/tensorboard"))
    read.Reload()
    accuracies = {point.step: point.value for point in read.Scalars("validation/accuracy")}
    lines = (tmp_path / "runs/tracked/events.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "evaluation"]
    written = {event["samples"]: event["accuracy"] for event in events if event["set"] == "validation"}
    assert accuracies == pytest.approx(written)
    assert min(written) < 600 < max(written), "of both parts of the run"
    assert sorted(accuracies) == [point.step for point in read.Scalars("validation/accuracy")], "each once, rising"
    assert "curves" in read.Tags()["images"]
    assert "job/text_summary" in read.Tags()["tensors"]
    client = tracking.MlflowClient()
    (experiment,) = [one for one in client.search_experiments() if one.name == "tracked"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["strategy.rule.rate"] == "0.1"
    history = {point.step: point.value for point in client.get_metric_history(found.info.run_id, "validation/accuracy")}
    assert history == pytest.approx(accuracies)
    assert {file.path for file in client.list_artifacts(found.info.run_id)} == {"model", "pictures"}


def train(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "dbelief", "train", "--quiet", *words]
    subprocess.run(command, cwd=folder, check=True, timeout=240)
