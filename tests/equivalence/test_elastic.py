"""Elastic averaging against its equations (ALGORITHMS: Zhang et al. 2015; You et al. 2017, equations 1 to 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.lease import FetchPushSchedule
from dbelief.core.push import PARAMETERS, LedgerRow, Push, Pusher
from dbelief.optim import make_rule
from dbelief.optim.rules.elastic import ElasticMove
from ps_server.store.shard import Shard
from tests.examples import examples
from worker.strategies.elastic import ElasticSettings

from .elastic import BATCH, PLAIN, Bowl, direct, working
from .harness import Problem, network, quadratic, serve, values_of


@pytest.mark.parametrize("make", [quadratic, network])
@pytest.mark.parametrize("longest", [None, 0.5])
@pytest.mark.parametrize(("mu", "nesterov"), [(None, False), (0.0, False), (0.9, False), (0.9, True)])
def test_a_forced_order_gives_the_equations_bits(
    make: Callable[[int], Problem], mu: float | None, nesterov: bool, longest: float | None
) -> None:
    """Round robin, and an order of arrival as it might be; gradients as they are, or clipped, as the most are here.

    Without contention it is the same without locks. A mu of 0 is no momentum.
    """
    for order, lock_free in product(([0, 1, 2] * 4, [2, 0, 0, 1, 2, 1, 1, 0, 2, 2, 0]), (False, True)):
        problem = make(BATCH * len(order))
        settings = replace(PLAIN, mu=mu, nesterov=nesterov, clip_norm=longest)
        with working(problem, settings, 3, lock_free=lock_free) as (centre, workers):
            for step, i in enumerate(order):
                workers[i].train(step * BATCH, (step + 1) * BATCH)
            expected, weights = direct(problem, order, 0.25, 0.125, mu or None, nesterov, longest or np.inf)
            np.testing.assert_array_equal(values_of(centre), expected)
            for worker, own in zip(workers, weights, strict=True):
                np.testing.assert_array_equal(worker.weights, own)
            if longest is not None:
                assert (expected != direct(problem, order, 0.25, 0.125, mu, nesterov)[0]).any()


@pytest.mark.parametrize(
    ("mu", "in_step", "lock_free"),
    [(None, False, False), (0.9, False, False), (None, True, False), (None, False, True)],
    ids=["async-easgd", "async-measgd", "sync-easgd", "hogwild-easgd"],
)
def test_no_force_is_so_many_workers_by_themselves(mu: float | None, in_step: bool, lock_free: bool) -> None:
    problem = network(48)
    free = replace(PLAIN, moving_rate=lambda rate: 0.0, mu=mu)
    with working(problem, free, 3, in_step, lock_free) as (centre, workers):
        for step in range(12):
            workers[step % 3].train(step * BATCH, (step + 1) * BATCH)
        np.testing.assert_array_equal(values_of(centre), problem.start)
        gradient = problem.gradients()
        for i, worker in enumerate(workers):
            w, v = problem.start.copy(), np.zeros_like(problem.start)
            for step in range(i, 12, 3):
                v = v * np.float32(mu or 0) - gradient(w, step * BATCH, (step + 1) * BATCH) * np.float32(0.25)
                w = w + v
            np.testing.assert_array_equal(worker.weights, w)


class Whole:
    """Gradients that are small whole numbers, whatever the weights: sums of them are exact."""

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"w": np.zeros(7, np.float32)}

    def loss_and_gradient(self, views: object, batch: object, out: dict[str, np.ndarray]) -> float:
        out["w"][:] = batch.inputs.sum(axis=0)  # type: ignore[attr-defined]
        return 0.0


@examples(30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 3), st.sampled_from([None, 0.5]))
def test_workers_plus_centre_change_by_gradients_only(order: list[int], period: int, mu: float | None) -> None:
    """With momentum by the velocities instead. All numbers are exact in float32, so the sums are equal."""
    rng = np.random.default_rng(len(order))
    inputs = rng.integers(-4, 5, (len(order) * 2 * BATCH, 7)).astype(np.float32)
    problem = Problem(Whole, inputs, np.zeros(len(inputs), np.int64))  # type: ignore[arg-type]
    cadence = FetchPushSchedule(BATCH, period, period)
    halves = ElasticSettings(cadence, lambda samples: 0.5, lambda rate: 0.5, mu)
    moved = np.zeros(7)
    with working(problem, halves, 4) as (centre, workers):
        velocities = np.zeros((4, 7))
        for turn, i in enumerate(order):
            for step in (2 * turn, 2 * turn + 1):
                g = 0.5 * inputs[step * BATCH : (step + 1) * BATCH].sum(axis=0)
                velocities[i] = (mu or 0.0) * velocities[i] - g
                moved += velocities[i]
            workers[i].train(2 * turn * BATCH, 2 * (turn + 1) * BATCH)
        have = sum(worker.weights.astype(np.float64) for worker in workers) + values_of(centre)
    np.testing.assert_array_equal(have, moved)


def test_between_exchanges_a_worker_is_alone() -> None:
    problem = network(40)
    settings = replace(PLAIN, cadence=FetchPushSchedule(BATCH, 4, 4))
    with working(problem, settings) as (centre, (worker,)):
        worker.train(0, 40)
        assert [(done.sequence, done.steps, done.samples, done.position) for done, _ in worker.done] == [
            (1, 4, 16, 16),
            (2, 4, 16, 32),
            (3, 2, 8, 40),
        ], "and a lease ends with an exchange"
        gradient, w, c = problem.gradients(), problem.start.copy(), problem.start.copy()
        for step in range(10):
            g = gradient(w, step * BATCH, (step + 1) * BATCH) * np.float32(0.25)
            d = (w - c) * np.float32(0.125) if step in (3, 7, 9) else np.float32(0)
            c, w = c + d, (w - g) - d
        np.testing.assert_array_equal(worker.weights, w)
        np.testing.assert_array_equal(values_of(centre), c)


@pytest.mark.parametrize("in_step", [False, True])
def test_exchanges_name_their_lease_and_the_samples_of_it_that_are_done(in_step: bool) -> None:
    problem = network(64)
    settings = replace(PLAIN, cadence=FetchPushSchedule(BATCH) if in_step else FetchPushSchedule(BATCH, 3, 3))
    with working(problem, settings, in_step=in_step) as (centre, (worker,)):
        for start, stop in ((0, 40), (40, 46), (46, 64)):
            worker.train(start, stop)
        rows = [LedgerRow(done.sequence, done.lease, done.position) for done, _ in worker.done]
        for shard in centre.shards:
            assert isinstance(shard, Shard)
            assert shard.ledgers()[PARAMETERS, worker.pusher] == (rows[-1], rows[-1])
    if in_step:
        positions = [(1, 4 * n) for n in range(1, 11)] + [(2, 4), (2, 6)] + [(3, min(4 * n, 18)) for n in range(1, 6)]
    else:
        positions = [(1, 12), (1, 24), (1, 36), (1, 40), (2, 6), (3, 12), (3, 18)]
    assert rows == [LedgerRow(n, *position) for n, position in enumerate(positions, start=1)]


@pytest.mark.parametrize("make", [quadratic, network])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_in_step_gives_the_equations_bits(make: Callable[[int], Problem], workers: int) -> None:
    """Every round: C <- C + a (sum of W - P C), W <- (W - eta g) - a (W - C), all with what was there before."""
    rounds, a = 6, np.float32(0.125)
    problem = make(BATCH * rounds * workers)
    with working(problem, PLAIN, workers, in_step=True) as (shards, all_workers):
        for step in range(rounds * workers):
            all_workers[step % workers].train(step * BATCH, (step + 1) * BATCH)
        gradient, centre = problem.gradients(), problem.start.copy()
        weights = [centre.copy() for _ in all_workers]
        for turn in range(rounds):
            total = weights[0].copy()
            for own in weights[1:]:
                total += own
            steps = range(turn * workers, (turn + 1) * workers)
            slopes = [gradient(own, s * BATCH, (s + 1) * BATCH) for own, s in zip(weights, steps, strict=True)]
            weights = [
                (own - g * np.float32(0.25)) - (own - centre) * a for own, g in zip(weights, slopes, strict=True)
            ]
            centre = centre + (total - np.float32(workers) * centre) * a
        np.testing.assert_array_equal(values_of(shards), centre)
        for worker, own in zip(all_workers, weights, strict=True):
            np.testing.assert_array_equal(worker.weights, own)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_in_step_is_stable_up_to_the_limit_and_not_beyond(workers: int, eta: float) -> None:
    """On w^2 / 2: a < (4 - 2 eta) / (P (2 - eta) + 2)."""
    limit = (4 - 2 * eta) / (workers * (2 - eta) + 2)
    for share, stable in ((0.98, True), (1.02, False)):
        end = simulated(workers, eta, share * limit, turns=400, in_step=True)
        assert (np.abs(end).max() < 1) == stable, "it began at 1, and shrinks or grows"


@pytest.mark.parametrize("workers", [1, 3, 5])
@pytest.mark.parametrize("eta", [0.5, 1.0, 1.5])
def test_round_robin_is_stable_up_to_the_limit(workers: int, eta: float) -> None:
    """On w^2 / 2 for an odd number of workers: a <= (4 - 2 eta) / (4 - eta) (Zhang et al. 2015, section 4)."""
    limit = (4 - 2 * eta) / (4 - eta)
    for share, stable in ((0.98, True), (1.02, False)):
        a = share * limit
        turn = np.eye(workers + 1)
        for i in range(workers):
            one = np.eye(workers + 1)
            one[i, i], one[i, -1] = 1 - eta - a, a
            one[-1, i], one[-1, -1] = a, 1 - a
            turn = one @ turn
        radius = np.abs(np.linalg.eigvals(turn)).max()
        assert (radius < 1) == stable, (share, radius)
        end = simulated(workers, eta, a, turns=400)
        assert np.all(np.abs(end) < 1e-2) == stable or (not stable and np.abs(end).max() > 1)


def simulated(workers: int, eta: float, a: float, turns: int, in_step: bool = False) -> np.ndarray:
    """Centre and weights of our workers on w^2 / 2 after so many turns; all begin at 1."""
    problem = Problem(Bowl, np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    problem = replace(problem, inputs=np.zeros((BATCH, 1), np.float32), targets=np.zeros(BATCH, np.int64))
    settings = ElasticSettings(FetchPushSchedule(BATCH), lambda samples: eta, lambda rate: a)
    with working(problem, settings, workers, in_step) as (centre, all_workers):
        for _ in range(turns):
            for worker in all_workers:
                worker.train(0, BATCH)
        return np.concatenate([values_of(centre), *(worker.weights for worker in all_workers)])


def test_the_rule_compiled_and_as_a_formula_are_one() -> None:
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((2, 1001)).astype(np.float32)
    formula, rule = w.copy(), ElasticMove()
    rule.apply_reference(np, formula, x, (), np.float32(0.3), 1)
    rule.apply(w, x, (), np.float32(0.3), 1)
    assert w.tobytes() == formula.tobytes()


def test_an_exchange_that_is_repeated_is_answered_as_before() -> None:
    problem = quadratic(BATCH)
    centre = serve(problem.start, make_rule("elastic", {}))
    weights = problem.start + np.float32(1)
    versions, first, again = (np.zeros(len(centre.placement.spans), np.int64), *np.empty((2, len(weights)), np.float32))
    push = Push(Pusher(0, 1), 1, np.float32(0.25))
    centre.exchange(weights, first, versions.copy(), push)
    moved = values_of(centre)
    centre.exchange(weights, again, versions.copy(), push)
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(first, problem.start)
    np.testing.assert_array_equal(values_of(centre), moved)
