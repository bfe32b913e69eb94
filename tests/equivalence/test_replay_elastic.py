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
from dbelief.errors import RuntimeFailure
from dbelief.job import Job
from dbelief.optim import make_rule
from dbelief.rundir.record import BatchRecorder, PushRecorder
from dbelief.tools.replay import replay_run
from dbelief.training.schedule import learning_rate, total_samples
from worker.strategies.elastic import ElasticSettings

from .elastic import Worker
from .harness import in_threads, serve, small_job, two_epochs, values_of

BATCH, WORKERS = 7, 3


EASGD = {"name": "async-easgd", "batch": BATCH, "rate": 0.1}


def job_of(folder: Path, **strategy: Any) -> Job:
    """Two epochs of digits, at a rate that falls all the time."""
    return small_job(folder, EASGD | strategy, schedule={"kind": "poly", "power": 0.5}, limits={"epochs": 2})


def free_running(job: Job, folder: Path) -> np.ndarray:
    """Leave the logs of a run, and give the last centre. Each worker trains two leases of each epoch."""
    strategy: Any = job.strategy
    problem = two_epochs(job)
    total = total_samples(job.limits, len(problem.inputs) // 2)
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
