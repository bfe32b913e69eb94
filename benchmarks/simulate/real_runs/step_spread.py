"""The spread of a mini-batch's time in this process: data and gradient, alone on a processor, without any exchange."""

from __future__ import annotations

import statistics
import time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.workers.small_step import views_of
from dbelief.arrays.backend import select_backend
from dbelief.data import load
from dbelief.job import Job
from dbelief.training.session import build_model

MEASURED_S = 0.5
WARM_UP = 3
LEAST = 10


def step_spread(job: Job) -> float:
    """Standard deviation over mean of the middle 90 %, measured for `MEASURED_S` after a warm-up.

    What is left out are the pauses in which another program had the processor.
    """
    data = load(job.data, job.folder)
    assert data.train is not None
    with threadpool_limits(1):
        model, _ = build_model(job, data, select_backend("cpu"))
        rng = np.random.default_rng(0)
        drawn = model.parameters(rng)
        w = np.concatenate([values.ravel() for values in drawn.values()])
        views, out = views_of(drawn, w), views_of(drawn, np.empty_like(w))
        size = job.samples_at_once
        buffer, samples = data.train.buffer(size), len(data.train.inputs)
        taken_s: list[float] = []
        until_s = time.perf_counter() + MEASURED_S
        while len(taken_s) < WARM_UP + LEAST or time.perf_counter() < until_s:
            began_s = time.perf_counter()
            batch = data.train.gather(rng.integers(samples, size=size), buffer)
            model.loss_and_gradient(views, batch, out)
            taken_s.append(time.perf_counter() - began_s)
    return middle_spread(taken_s[WARM_UP:])


def middle_spread(taken_s: list[float]) -> float:
    """Of so many measured times."""
    ordered = sorted(taken_s)
    left_out = len(ordered) // 20
    middle = ordered[left_out : len(ordered) - left_out]
    return statistics.pstdev(middle) / statistics.mean(middle)
