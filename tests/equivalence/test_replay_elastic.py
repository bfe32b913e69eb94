"""Workers of elastic averaging that run free in threads of their own, logged and replayed: the same bits."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.layout import nominal_length
from dbelief.core.lease import FetchPushSchedule
from dbelief.data import load, permutation
from dbelief.errors import JobError, RuntimeFailure
from dbelief.job import Job, build_job
from dbelief.optim import make_rule
from dbelief.rundir.record import BatchRecorder, PushRecorder
from dbelief.tools.replay import replay_run
from dbelief.training.schedule import learning_rate, total_samples
from dbelief.training.session import build_model
from worker.strategies.elastic import ElasticSettings

from .elastic import Worker
from .harness import HOST, Problem, in_threads, serve, values_of

BATCH, WORKERS = 7, 3


def job_of(folder: Path, record: bool = True, **strategy: Any) -> Job:
    """Two epochs of digits, at a rate that falls all the time."""
    fields = {
        "name": "small",
        "model": {"layers": [{"dense": 20}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"},
        "data": {"source": "digits"},
        "strategy": {"name": "async-easgd", "batch": BATCH, "rate": 0.1, **strategy},
        "schedule": {"kind": "poly", "power": 0.5},
        "limits": {"epochs": 2},
        "shards": 3,
        "replicas": WORKERS,
        "seed": 1,
        "record": record,
        "device": "cpu",
    }
    job = build_job(fields, folder)
    (folder / "job.yaml").write_text(job.to_yaml())
    return job


def free_running(job: Job, folder: Path) -> np.ndarray:
    """Leave the logs of a run, and give the last centre. Each worker trains two leases of each epoch."""
    data = load(job.data, job.folder)
    assert data.train is not None
    strategy: Any = job.strategy
    order = np.concatenate([permutation(len(data.train), job.seed, epoch) for epoch in range(2)])
    samples = data.train.gather(order, data.train.buffer(len(order)))
    problem = Problem(lambda: build_model(job, data, HOST)[0], samples.inputs, samples.targets, epochs=2)
    total = total_samples(job.limits, len(data.train))
    chosen = ElasticSettings(
        FetchPushSchedule(BATCH, strategy.period, strategy.period),
        lambda before: learning_rate(job, before, total=total),
        lambda rate: float(strategy.moving_rate(rate, WORKERS)),
        strategy.momentum,
        strategy.nesterov,
        clip_norm=strategy.clip_norm,
    )
    log = PushRecorder()
    nominal = nominal_length(len(problem.start), job.shards)
    centre = serve(problem.start, make_rule("elastic", {}), 3, nominal, on_apply=log.note)
    logs = [BatchRecorder() for _ in range(WORKERS)]
    length, begin = 16 * BATCH - 3, threading.Barrier(WORKERS)

    def work(number: int, worker: Worker) -> None:
        begin.wait(60)
        for epoch in range(2):
            start, stop = number * length, (number + 1) * length
            worker.train(start, start + length // 2, epoch=epoch)
            worker.train(start + length // 2, stop, epoch=epoch)

    with ExitStack() as stack:
        workers = [stack.enter_context(closing(Worker(problem, centre, chosen, n, logs[n]))) for n in range(WORKERS)]
        in_threads(*(partial(work, n, worker) for n, worker in enumerate(workers)), mixed=True)
    log.write(folder / "record", 0)
    for one, worker in zip(logs, workers, strict=True):
        one.write(folder / "record", worker.pusher)
    return values_of(centre)


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "async-easgd", "clip_norm": 0.5},
        {"name": "async-easgd", "period": 4, "rho": 0.5},
        {"name": "async-measgd", "period": 3, "rate": 0.02},
        {"name": "async-measgd", "nesterov": True, "rate": 0.02},
    ],
)
def test_a_runs_folder_is_replayed(tmp_path: Path, strategy: dict[str, Any]) -> None:
    centre = free_running(job_of(tmp_path, **strategy), tmp_path)
    np.testing.assert_array_equal(replay_run(tmp_path), centre)


def test_a_log_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    free_running(job_of(tmp_path), tmp_path)
    log = tmp_path / "record" / "shard-0.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith("[0,"))
    log.write_text("".join(line for number, line in enumerate(lines) if number != first))
    with pytest.raises(RuntimeFailure, match=r"segment 0: push 1 of replica . in incarnation 1. was acknowledged"):
        replay_run(tmp_path)
    (tmp_path / "record" / "replica-1-11.jsonl").unlink()
    with pytest.raises(RuntimeFailure, match="of replica 1 in incarnation 11, and no replica's log holds it"):
        replay_run(tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "easgd"}, "staleness is 0: rounds are not logged"),
        ({"record": False}, "record is false: nothing was logged"),
        ({"name": "sync-easgd", "form": 2, "record": False}, "strategy is sync-easgd, whose pushes have no order"),
    ],
)
def test_undetermined_runs_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    job_of(tmp_path, **fields)
    with pytest.raises(JobError, match=f"cannot be replayed: {words}"):
        replay_run(tmp_path)
