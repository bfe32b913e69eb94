"""Round robin: mini-batch t is of worker t mod P alone (You et al. 2017, algorithm 1)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

from dbelief.core.lease import FetchPushSchedule
from dbelief.nn import Batch
from dbelief.optim import make_rule
from worker.strategies.elastic import ElasticSettings

from .elastic import BATCH, PLAIN, Bowl, Worker, direct, working
from .harness import Problem, network, quadratic, serve, values_of


def in_turn(
    problem: Problem, settings: ElasticSettings, workers: int, each: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Centre and weights of workers on threads of their own, mini-batch t of worker t mod P; asserts who went when."""
    centre, went = serve(problem.start, make_rule("elastic", {}), replicas=workers), list[int]()
    for shard in centre.shards:
        shard.set_membership(2, [(t, [t % workers]) for t in range(workers * each)])  # type: ignore[attr-defined]
    alone = threading.Lock()

    def work(worker: Worker, number: int) -> None:
        for turn in range(each):
            step = turn * workers + number
            worker.train(step * BATCH, (step + 1) * BATCH, clock=step)

    with ExitStack() as stack:
        made = [stack.enter_context(closing(Worker(problem, centre, settings, n))) for n in range(workers)]
        for n, worker in enumerate(made):
            plain = worker._elastic._own.compute

            def compute(batch: Batch, plain: Callable[[Batch], float] = plain, n: int = n) -> float:
                assert alone.acquire(blocking=False), "another computes"
                went.append(n)
                loss = plain(batch)
                alone.release()
                return loss

            worker._elastic._own.compute = compute  # type: ignore[method-assign]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, made, range(workers)))
        assert went == [t % workers for t in range(workers * each)]
        return values_of(centre), [worker.weights for worker in made]


@pytest.mark.parametrize("make", [quadratic, network])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_turns_have_the_bits_of_a_forced_order(make: Callable[[int], Problem], workers: int) -> None:
    """As the equations in that order, and as asynchronous exchanges; each worker is a thread of its own."""
    each = 5
    problem = make(BATCH * workers * each)
    order = [t % workers for t in range(workers * each)]
    expected, weights = direct(problem, order, 0.25, 0.125)
    centre, own = in_turn(problem, replace(PLAIN, turns=True), workers, each)
    np.testing.assert_array_equal(centre, expected)
    np.testing.assert_array_equal(own, weights)
    with working(problem, PLAIN, workers) as (shards, all_workers):
        for step, number in enumerate(order):
            all_workers[number].train(step * BATCH, (step + 1) * BATCH)
        np.testing.assert_array_equal(values_of(shards), centre)
        np.testing.assert_array_equal([worker.weights for worker in all_workers], own)


@pytest.mark.parametrize(("eta", "a"), [(0.25, 0.5), (0.5, 0.25), (1.5, 0.3)])
def test_one_worker_in_turn_is_a_recursion_of_two_numbers(eta: float, a: float) -> None:
    """On w^2 / 2: (W, C) after t mini-batches is [[1 - eta - a, a], [a, 1 - a]] to the power of t, times (1, 1)."""
    turns = 12
    problem = replace(quadratic(BATCH * turns, size=2), make=Bowl)
    centre, (own,) = in_turn(
        problem, ElasticSettings(FetchPushSchedule(BATCH), lambda _: eta, lambda _: a, turns=True), 1, turns
    )
    power = np.linalg.matrix_power(np.array([[1 - eta - a, a], [a, 1 - a]]), turns)
    np.testing.assert_allclose(own, power[0].sum(), rtol=2e-6)
    np.testing.assert_allclose(centre, power[1].sum(), rtol=2e-6)
