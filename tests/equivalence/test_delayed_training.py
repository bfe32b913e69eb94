"""A training with delays equals the formulas: the sequential ones of one replica, and loops over events of several."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.push import Pusher
from dbelief.job import Job
from dbelief.optim import make_rule
from dbelief.simulate.replay.delays import FETCH, LOST, PUSH, ROUND
from dbelief.training.schedule import learning_rate
from tests.equivalence.by_hand import Server, pseudocode, sequential
from tests.equivalence.delayed import events_of, job_of, trained
from tests.equivalence.elastic import BATCH as ELASTIC_BATCH
from tests.equivalence.elastic import direct
from tests.equivalence.harness import Problem, Replica, serve, settings, two_epochs, values_of

BATCH, RATE = 8, 0.05
THREE = "F0 F1 F2 P1 F1 P0 P1 F1 F0 P2 P0 F2 F0 P0 P2 F0 F2 P1 F1"
"""Three replicas in no order; after the last event it goes on at the first."""


def downpour(**fields: Any) -> dict[str, Any]:
    return {"name": "downpour", "batch": BATCH, "rule": {"name": "sgd", "rate": RATE}, "warm_start": None} | fields


# -- one replica -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam", "momentum"])
def test_one_replica_that_fetches_before_each_push_is_sequential(tmp_path: Path, name: str) -> None:
    """The same bits as the formula, at a falling rate, over two epochs whose last mini-batches are short."""
    rule = {"name": name, "rate": 0.01}
    job = job_of(tmp_path, downpour(rule=rule), limits={"epochs": 2}, schedule={"kind": "poly", "power": 0.5})
    problem = two_epochs(job)
    epoch, whole = len(problem.inputs) // 2, len(problem.inputs)
    found, replay = trained(job, "F0 P0")

    def rate(samples: int) -> float:
        return learning_rate(job, samples, total=whole)

    leases = [(0, epoch), (epoch, whole)]
    expected = sequential(problem, leases, BATCH, make_rule(name, _options(job)), rate)
    assert np.array_equal(found, expected)
    assert replay.training.progress.samples == whole
    assert replay.training.progress.staleness_sum == 0


def _options(job: Job) -> dict[str, Any]:
    return job.strategy.at_shards.model_dump(exclude={"name", "rate"})


@pytest.mark.parametrize(("n_fetch", "n_push", "events"), [(2, 4, "F0 F0 P0"), (4, 2, "F0 P0 P0"), (3, 3, "F0 P0")])
@pytest.mark.parametrize("local_rate", [None, 0.02])
def test_one_replica_with_local_steps_is_the_pseudocode(
    tmp_path: Path, n_fetch: int, n_push: int, events: str, local_rate: float | None
) -> None:
    samples = 20 * BATCH * math.lcm(n_fetch, n_push)
    chosen = {"n_fetch": n_fetch, "n_push": n_push, "local_rate": local_rate}
    job = job_of(tmp_path, downpour(**chosen), limits={"samples": samples})
    problem = two_epochs(job)
    found, _ = trained(job, events)
    by_hand = pseudocode(problem, [(0, samples)], BATCH, make_rule("sgd", {}), RATE, n_fetch, n_push, False, local_rate)
    np.testing.assert_allclose(found, by_hand, rtol=0, atol=2e-6)
    assert np.array_equal(found, _by_the_worker(problem, samples, **chosen))


def test_clipped_gradients_are_the_worker_s(tmp_path: Path) -> None:
    job = job_of(tmp_path, downpour(clip_norm=0.3))
    assert np.array_equal(trained(job, "F0 P0")[0], _by_the_worker(two_epochs(job), 1000, clip_norm=0.3))


def _by_the_worker(problem: Problem, samples: int, **chosen: Any) -> np.ndarray:
    """What a worker makes of one long lease."""
    parameters = serve(problem.start, make_rule("sgd", {}))
    replica = Replica(problem, parameters, settings(RATE, BATCH, **chosen))
    replica.train(0, samples)
    replica.close()
    return values_of(parameters)


# -- several replicas --------------------------------------------------------------------------------------------


def by_events(
    problem: Problem, events: list[tuple[int, int]], samples: int, apply: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    """Gradients of mini-batches in the order of pushes, each at what its replica fetched; apply(gradient, staleness).

    Mini-batches that are computed by a replica that is lost afterwards go to the next ones.
    """
    gradient, w = problem.gradients(), problem.start.copy()
    fetched: dict[int, tuple[np.ndarray, int]] = {}
    position = version = 0
    while True:
        for kind, number in events:
            if kind == FETCH:
                fetched[number] = w, version
            elif kind == LOST:
                del fetched[number]
            elif kind == PUSH:
                at, seen = fetched[number]
                stop = min(position + BATCH, samples)
                w = apply(gradient(at, position, stop), version - seen)
                position, version = stop, version + 1
                if position == samples:
                    return w


@pytest.mark.parametrize("events", [THREE, "F0 F1 F2 P0 F0 P1 L1 P0 F0 F1 L2 P0 F2 P1 F0 P2"])
@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_three_replicas_equal_a_loop_over_their_events(tmp_path: Path, name: str, events: str) -> None:
    job = job_of(tmp_path, downpour(rule={"name": name, "rate": RATE}))
    problem = two_epochs(job)
    server = Server(problem.start, make_rule(name, {}))

    def apply(gradient: np.ndarray, late: int) -> np.ndarray:
        server.push(gradient, RATE)
        return server.w.copy()

    found, replay = trained(job, events, 3)
    assert np.array_equal(found, by_events(problem, events_of(events), 1000, apply))
    assert replay.passes > 3
    assert (replay.replicas_lost > 3) == ("L" in events)


def test_a_rate_by_staleness_equals_a_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, downpour(staleness_aware=True))
    problem = two_epochs(job)
    w, most = problem.start.copy(), 0

    def apply(gradient: np.ndarray, late: int) -> np.ndarray:
        nonlocal w, most
        most = max(most, late)
        w = w - np.float32(RATE) / np.float32(max(1, late)) * gradient
        return w

    found, _ = trained(job, THREE, 3)
    assert np.array_equal(found, by_events(problem, events_of(THREE), 1000, apply))
    assert most > 3


def test_fetches_that_overlap_are_used_in_their_order(tmp_path: Path) -> None:
    """Each gradient is computed from the fetch before the last: late by one push of its own replica."""
    job = job_of(tmp_path, downpour(overlap=True))
    found, replay = trained(job, "F0 " + "F0 P0 " * 200)
    problem = two_epochs(job)
    gradient, w = problem.gradients(), [problem.start.copy()] * 2
    for first in range(0, 1000, BATCH):
        w.append(w[-1] - np.float32(RATE) * gradient(w[-2], first, min(first + BATCH, 1000)))
    assert np.array_equal(found, w[-1])
    assert replay.staleness.counts[:3] == [1, 124, 0]


# -- elastic averaging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[0], [0, 1, 0, 2, 2, 1, 0, 1]])
@pytest.mark.parametrize(
    ("name", "chosen"),
    [("async-easgd", {}), ("async-measgd", {"mu": 0.5}), ("async-measgd", {"mu": 0.5, "nesterov": True})],
)
def test_elastic_replicas_equal_the_equations(
    tmp_path: Path, name: str, chosen: dict[str, Any], order: list[int]
) -> None:
    replicas, samples, eta, rho = max(order) + 1, 400, 0.125, 1.0
    strategy = {"name": name, "batch": ELASTIC_BATCH, "rate": eta, "rho": rho, **chosen}
    job = job_of(tmp_path, strategy, limits={"samples": samples})
    # In each pass over the events a FETCH, which an elastic replica that has begun does not need.
    events = " ".join([*(f"F{n}" for n in range(replicas)), *(f"P{n}" for n in order)])
    found, replay = trained(job, events, replicas)
    steps = samples // ELASTIC_BATCH
    turns = (order * steps)[:steps]
    centre, weights = direct(two_epochs(job), turns, eta, eta * rho, **chosen)
    assert np.array_equal(found, centre)
    for number, own in enumerate(weights):
        assert np.array_equal(replay._replicas[number].trainer._own.values, own)


def test_a_period_of_elastic_steps_has_one_exchange(tmp_path: Path) -> None:
    job = job_of(tmp_path, {"name": "async-easgd", "batch": 4, "rate": 0.125, "rho": 1.0, "period": 3})
    problem = two_epochs(job)
    gradient, centre = problem.gradients(), problem.start.copy()
    own = [centre.copy(), centre.copy()]
    found, _ = trained(job, "F0 F1 P0 P1 P1", 2)
    steps = 0
    for number in [0, 1, 1] * 100:
        for step in range(3):
            first, stop = steps * 4, min(1000, steps * 4 + 4)
            if first >= 1000:
                break
            g = gradient(own[number], first, stop) * np.float32(0.125)
            steps += 1
            if step == 2 or stop == 1000:
                moved = (own[number] - centre) * np.float32(0.125)
                centre, own[number] = centre + moved, (own[number] - g) - moved
            else:
                own[number] = own[number] - g
    assert np.array_equal(found, centre)


# -- rounds ------------------------------------------------------------------------------------------------------


def rounds_by_hand(problem: Problem, events: str, samples: int, steps: int, stale: float = 0.5) -> np.ndarray:
    """DiLoCo with SGD as both rules: in a round the mean of w - w_i by samples, late ones by `stale` for each round."""
    gradient, w, round_, position = problem.gradients(), problem.start.copy(), 0, 0
    fetched: dict[int, tuple[np.ndarray, int]] = {}
    held: list[tuple[int, int, np.ndarray, float]] = []

    def step(w: np.ndarray) -> np.ndarray:
        total = sum(samples * stale ** (round_ - own) for own, _, _, samples in held)
        mean = np.zeros_like(w)
        for own, _, difference, samples in sorted(held, key=lambda one: one[:2]):
            mean = mean + difference * np.float32(samples * stale ** (round_ - own) / total)
        held.clear()
        return w - np.float32(0.5) * mean

    while True:
        for kind, number in events_of(events):
            if kind == FETCH:
                fetched[number] = w, round_
            elif kind == PUSH:
                (own, seen), first = fetched[number], position
                for _ in range(steps):
                    stop = min(position + BATCH, samples)
                    if position < stop:
                        own = own - np.float32(RATE) * gradient(own, position, stop)
                    position = stop
                held.append((seen, number, fetched[number][0] - own, position - first))
                if position == samples:
                    return step(w)
            elif kind == ROUND:
                w, round_ = step(w), round_ + 1


def diloco(**fields: Any) -> dict[str, Any]:
    inner, outer = {"name": "sgd", "rate": RATE}, {"name": "sgd", "rate": 0.5}
    return {"name": "diloco", "batch": BATCH, "steps": 3, "inner": inner, "outer": outer} | fields


def test_rounds_of_all_replicas_are_outer_steps(tmp_path: Path) -> None:
    job, events = job_of(tmp_path, diloco()), "F0 F1 F2 P1 P0 P2 R"
    found, replay = trained(job, events, 3)
    assert np.array_equal(found, rounds_by_hand(two_epochs(job), events, 1000, 3))
    assert (replay.late_pushes, replay.training.progress.rounds) == (0, 14)


def test_late_pushes_of_a_quorum_count_less(tmp_path: Path) -> None:
    job = job_of(tmp_path, diloco(quorum=2, stale=0.25))
    events = "F0 F1 F2 P1 P0 R F0 F1 P0 P1 R F0 P2 F2 P0 P2 R"
    found, replay = trained(job, events, 3)
    np.testing.assert_allclose(found, rounds_by_hand(two_epochs(job), events, 1000, 3, 0.25), rtol=0, atol=1e-7)
    assert replay.late_pushes == 6
    assert not np.array_equal(found, trained(job_of(tmp_path, diloco(quorum=2)), events, 3)[0])


def test_inner_momentum_stays_with_its_replica(tmp_path: Path) -> None:
    """It begins anew where the replica was lost, and is no other replica's."""
    job = job_of(tmp_path, diloco(inner={"name": "momentum", "rate": RATE, "mu": 0.9}), limits={"samples": 960})
    kept, _ = trained(job, "F0 P0 R F1 P1 R", 2)
    lost, replay = trained(job, "F0 P0 R L0 F1 P1 R L1", 2)
    assert replay.replicas_lost > 30
    problem = two_epochs(job)
    for found, forgets in ((kept, False), (lost, True)):
        gradient, w = problem.gradients(), problem.start.copy()
        servers = [Server(w, make_rule("momentum", {"mu": 0.9})) for _ in range(2)]
        for round_ in range(960 // (3 * BATCH)):
            inner = servers[round_ % 2]
            if forgets:
                inner = Server(w, make_rule("momentum", {"mu": 0.9}))
            inner.w = w.copy()
            for step in range(3):
                first = (3 * round_ + step) * BATCH
                inner.push(gradient(inner.w, first, first + BATCH), RATE)
            w = w - np.float32(0.5) * (w - inner.w)
        assert np.array_equal(found, w)


def test_pushers_are_incarnations(tmp_path: Path) -> None:
    """What a replica has pushed in the open round counts, also where it is lost before the round ends."""
    job, events = job_of(tmp_path, diloco()), "F0 F1 P0 L0 P1 R"
    found, replay = trained(job, events, 2)
    assert np.array_equal(found, rounds_by_hand(two_epochs(job), events.replace("L0 ", ""), 1000, 3))
    assert replay._replicas[0].pusher == Pusher(0, replay._incarnations)
