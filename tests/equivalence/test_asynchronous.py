"""Asynchronous SGD by its own names (You et al. 2017, sections 3.1 and 5.1): what the names stand for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from coordinator.core.states import DatasetSizes
from coordinator.scheduling.sizing import progress
from dbelief.core.lease import FetchPushSchedule
from dbelief.job import Asynchronous, Job
from dbelief.optim import make_rule
from tests.jobs import small_job

from .harness import network, replica, serve, settings, values_of

BATCH = 4
ORDER = [0, 1, 1, 0, 2, 1, 0, 0, 2, 1, 2, 0]
"""In which three replicas compute; what each fetched before is two pushes old, and more."""


def job(**strategy: Any) -> Job:
    return small_job(limits={"epochs": 1}, replicas=3, strategy={"batch": BATCH, **strategy})


def cadence(named: Job) -> FetchPushSchedule:
    """The fetch and push schedule of the job's replicas."""
    strategy = named.strategy
    assert isinstance(strategy, Asynchronous)
    return FetchPushSchedule(strategy.batch, strategy.n_fetch, strategy.n_push, strategy.literal)


def trained(named: Job) -> np.ndarray:
    """What three replicas make of it in a forced order."""
    problem, strategy = network(BATCH * len(ORDER)), named.strategy
    options = strategy.rule.model_dump(exclude={"name", "rate"})
    shards = serve(problem.start, make_rule(strategy.rule.name, options), lock_free=not strategy.locked)
    chosen = settings(strategy.rule.rate, BATCH, cadence(named).n_fetch, cadence(named).n_push)
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(problem, shards, chosen, number)) for number in range(3)]
        for step, number in enumerate(ORDER):
            replicas[number].train(step * BATCH, (step + 1) * BATCH)
    return values_of(shards)


def direct(eta: float, mu: float = 0.0) -> np.ndarray:
    """Equations 3 and 4 in a loop; with one push at a time each gradient sees all before it."""
    problem = network(BATCH * len(ORDER))
    gradient, w, v = problem.gradients(), problem.start.copy(), np.zeros_like(problem.start)
    for step in range(len(ORDER)):
        v = np.float32(mu) * v - np.float32(eta) * gradient(w, step * BATCH, (step + 1) * BATCH)
        w = w + v
    return w


@pytest.mark.parametrize(
    ("name", "mu"),
    [("async-sgd", None), ("hogwild-sgd", None), ("async-msgd", 0.0), ("async-msgd", 0.5), ("async-msgd", 0.9)],
)
def test_names_are_equations_where_pushes_do_not_mix(name: str, mu: float | None) -> None:
    """With momentum, its velocity is on the shards; where they do not meet, pushes need no locks."""
    named = job(name=name, rate=0.1, **({} if mu is None else {"mu": mu}))
    np.testing.assert_array_equal(trained(named), direct(0.1, mu or 0.0))
    assert job(name="async-msgd", rate=0.1).strategy.rule.model_dump()["mu"] == 0.9


def test_all_begin_at_once_and_push_every_mini_batch() -> None:
    named, shape = job(name="async-sgd", rate=0.1), DatasetSizes(train=1000, validation=0, test=0)
    assert not progress(named, shape, 1000).warm_start.active
    assert (cadence(named).n_fetch, cadence(named).n_push, named.strategy.staleness) == (1, 1, None)
