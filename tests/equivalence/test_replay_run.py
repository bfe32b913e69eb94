"""Replicas that run free in threads of their own, logged as the programs log, and replayed: the same bits."""

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dbelief.checkpoint.set_storage import LocalSets
from dbelief.core.absent import Ranges
from dbelief.core.layout import nominal_length
from dbelief.core.lease import FetchPushSchedule
from dbelief.data import load
from dbelief.errors import DataError, JobError, RuntimeFailure
from dbelief.job import load_job
from dbelief.optim import make_rule
from dbelief.rundir.record import ComputedBatch, PushRecorder, read_record
from dbelief.tools.replay import replay, replay_run
from dbelief.training.session import build_model, initial_values
from tests.assembled import assembled
from tests.equivalence.harness import (
    HOST,
    Problem,
    Replica,
    in_threads,
    network,
    quadratic,
    serve,
    settings,
    small_job,
    two_epochs,
    values_of,
)

RATE, BATCH, SAMPLES, REPLICAS = 0.05, 2, 150, 3
ADAGRAD = make_rule("adagrad", {})
PROBLEMS = {"quadratic": quadratic(SAMPLES), "network": network(SAMPLES)}


# -- replicas in threads -----------------------------------------------------------------------------------------


def free_running(
    problem: Problem, overlap: bool, folder: Path, nominal: int | None = None, **chosen: Any
) -> np.ndarray:
    """Three replicas in threads of their own that wait for nobody; the last parameters."""
    recorder = PushRecorder()
    parameters = serve(problem.start, ADAGRAD, 3, nominal, on_apply=recorder.note)
    replicas = [Replica(problem, parameters, settings(RATE, overlap=overlap, **chosen), n) for n in range(REPLICAS)]
    begin = threading.Barrier(REPLICAS)
    length = len(problem.inputs) // problem.epochs // REPLICAS

    def work(number: int) -> None:
        begin.wait(60)
        for epoch in range(problem.epochs):
            start, stop = number * length, (number + 1) * length
            replicas[number].train(start, start + length // 2, epoch)
            replicas[number].train(start + length // 2, stop, epoch)

    in_threads(*(partial(work, number) for number in range(REPLICAS)), mixed=True)
    for one in replicas:
        one.close()
        one.write_record(folder)
    recorder.write(folder, 0)
    return values_of(parameters)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_replicas_in_threads_are_replayed(tmp_path: Path, name: str, overlap: bool) -> None:
    problem = PROBLEMS[name]
    w = free_running(problem, overlap, tmp_path, batch=BATCH)
    applied, computed = read_record(tmp_path, FetchPushSchedule(BATCH))
    spans, gradient = serve(problem.start, ADAGRAD, 3).placement.spans, problem.gradients()

    def gradient_of(values: np.ndarray, row: ComputedBatch) -> tuple[np.ndarray, Ranges]:
        return gradient(values, row.start, row.stop), ()

    assert np.array_equal(replay(problem.start, spans, ADAGRAD, applied, computed, gradient_of), w)
    assert len(computed) == REPLICAS * 26
    assert all(row.acknowledged for row in computed)
    assert len(set(applied)) == len(applied) == len(computed) * len(spans)


# -- a run's folder ----------------------------------------------------------------------------------------------


DOWNPOUR = {"name": "downpour", "batch": 7, "rule": {"name": "adagrad", "rate": RATE}}


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A run's folder as its programs leave it, and the last parameters: two epochs, clipped gradients."""
    job = small_job(tmp_path, {**DOWNPOUR, "clip_norm": 0.8})
    problem = two_epochs(job)
    nominal = nominal_length(len(problem.start), job.shards)
    w = free_running(problem, False, tmp_path / "record", nominal, batch=7, clip_norm=0.8)
    return tmp_path, w


def test_a_runs_folder_is_replayed(run: tuple[Path, np.ndarray]) -> None:
    folder, w = run
    assert np.array_equal(replay_run(folder), w)


def test_segments_are_cut_as_in_the_run(run: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sets say how: a later version may begin jobs with other segments."""
    folder, w = run
    job = load_job(folder / "job.yaml")
    nominal = nominal_length(len(w), job.shards)
    (folder / "snapshots" / "7-1").mkdir(parents=True)
    LocalSets(folder / "snapshots").commit("7-1", job.name, {"nominal_length": nominal})
    monkeypatch.setattr("dbelief.tools.replay.run.nominal_length", lambda size, shards: nominal // 2)
    assert np.array_equal(replay_run(folder), w)


def test_replay_of_a_run_with_start_from(run: tuple[Path, np.ndarray]) -> None:
    folder, w = run
    job = load_job(folder / "job.yaml")
    layout, initial = initial_values(job, build_model(job, load(job.data, job.folder), HOST)[0])
    first = folder / "first"
    first.mkdir()
    (first / "job.yaml").write_text(job.to_yaml())
    save_file(assembled(layout, initial), first / "model.safetensors")
    (folder / "job.yaml").write_text(job.model_copy(update={"start_from": "first"}).to_yaml())
    assert np.array_equal(replay_run(folder), w)
    save_file(assembled(layout, 2 * initial), first / "model.safetensors")
    assert not np.array_equal(replay_run(folder), w)


def test_a_runs_folder_without_a_log_is_refused(run: tuple[Path, np.ndarray]) -> None:
    folder, _ = run
    log = folder / "record" / "replica-1-2.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:3], lines[3][:20]]))
    with pytest.raises(DataError, match=r"replica-1-2.jsonl, line 4: cannot be read"):
        replay_run(folder)
    log.write_text("".join([*lines[:3], json.dumps({"epoch": 0}), "\n"]))
    with pytest.raises(DataError, match=r"replica-1-2.jsonl, line 4: no mapping with epoch, samples_before, sequence"):
        replay_run(folder)
    log.write_text("")
    with pytest.raises(DataError, match=r"replica-1-2.jsonl, line 1: no mapping with acknowledged"):
        replay_run(folder)
    log.unlink()
    with pytest.raises(RuntimeFailure, match=r"push 1 of replica 1 in incarnation 2, and no replica's log holds it"):
        replay_run(folder)
    (folder / "record" / "shard-0.jsonl").write_text("[1, 2]\n")
    with pytest.raises(DataError, match=r"shard-0.jsonl, line 1: not \[segment"):
        replay_run(folder)
    (folder / "record" / "shard-0.jsonl").unlink()
    with pytest.raises(DataError, match="no log of a shard"):
        replay_run(folder)


EASGD = {"batch": 7, "rate": 0.1}


@pytest.mark.parametrize(
    ("strategy", "fields", "words"),
    [
        ({**DOWNPOUR, "n_fetch": 2}, {}, "n_fetch is 2: local steps are not logged"),
        ({**DOWNPOUR, "n_push": 4}, {}, "n_push is 4: sums of gradients are not logged"),
        ({**DOWNPOUR, "staleness": 0}, {}, "staleness is 0: no timing decides its rounds"),
        (DOWNPOUR, {"record": False}, "record is false: nothing was logged"),
        (DOWNPOUR, {"data": {"source": "none"}, "replicas": 0}, "data.source is none"),
        ({**EASGD, "name": "easgd"}, {}, "staleness is 0: no timing decides its rounds"),
        ({**EASGD, "name": "async-easgd"}, {"record": False}, "record is false: nothing was logged"),
        (
            {**EASGD, "name": "sync-easgd", "form": 2},
            {"record": False},
            "strategy is sync-easgd, whose pushes have no order",
        ),
    ],
)
def test_undetermined_runs_are_refused(
    tmp_path: Path, strategy: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    small_job(tmp_path, strategy, **fields)
    with pytest.raises(JobError, match=f"cannot be replayed: {words}"):
        replay_run(tmp_path)
