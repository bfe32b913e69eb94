"""A rate divided by each push's own staleness (Zhang, Gupta, Lian and Liu 2016), measured per segment by the shard."""

import numpy as np
import pytest

from dbelief.core.push import Push, Pusher
from dbelief.optim import make_rule
from tests.equivalence.harness import quadratic, replica, serve, settings, values_of

SGD = make_rule("sgd", {})
RATE = np.float32(0.25)
H = np.array([0.1, 0.3, 0.7, 1.1], np.float32)
START = np.linspace(1, 2, 4).astype(np.float32)


def in_turn(replicas: int, pushes: int, aware: bool) -> np.ndarray:
    """All w(t) of f(w) = sum of H w^2 / 2, where replicas push in turn and fetch right after."""
    parameters = serve(START, SGD, shards=2, nominal=2, staleness_aware=aware)
    copies = [START.copy() for _ in range(replicas)]
    versions = [np.zeros(2, np.int64) for _ in range(replicas)]
    history = [START.copy()]
    for t in range(pushes):
        turn = t % replicas
        push = Push(Pusher(turn, turn + 1), t // replicas + 1, RATE)
        parameters.push(H * copies[turn], versions[turn], push)
        parameters.pull(copies[turn], versions[turn])
        history.append(copies[turn].copy())
    return np.stack(history)


@pytest.mark.parametrize("replicas", range(1, 9))
def test_replicas_in_turn_match_delayed_descent(replicas: int) -> None:
    w = [START]
    for t in range(60):
        delay = min(t, replicas - 1)
        w.append(w[t] - RATE / np.float32(max(1, delay)) * (H * w[t - delay]))
    assert np.array_equal(in_turn(replicas, 60, aware=True), np.stack(w))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_staleness_of_one_at_most_changes_no_bit(replicas: int) -> None:
    assert np.array_equal(in_turn(replicas, 60, aware=True), in_turn(replicas, 60, aware=False))


def test_a_staleness_above_one_does() -> None:
    assert not np.array_equal(in_turn(3, 60, aware=True), in_turn(3, 60, aware=False))


def test_each_segment_divides_by_its_own_staleness() -> None:
    rates: dict[int, float] = {}
    parameters = serve(
        START,
        SGD,
        shards=1,
        nominal=2,
        on_apply=lambda segment, pusher, sequence, rate: rates.update({segment: rate}),
        staleness_aware=True,
    )
    first, other = Pusher(0, 1), Pusher(1, 2)
    for sequence in range(1, 5):
        parameters.push(START, np.zeros(2, np.int64), Push(other, sequence, RATE))
    before = values_of(parameters)
    parameters.push(START, np.array([0, 3], np.int64), Push(first, 1, RATE))
    assert rates == {0: 0.0625, 1: 0.25}
    expected = before - np.array([0.0625, 0.0625, 0.25, 0.25], np.float32) * START
    np.testing.assert_array_equal(values_of(parameters), expected)


def test_one_replica_trains_as_without_it() -> None:
    problem, ends = quadratic(60), []
    for aware in (False, True):
        parameters = serve(problem.start, SGD, staleness_aware=aware)
        with replica(problem, parameters, settings(0.05, 3)) as one:
            one.train(0, 60)
        ends.append(values_of(parameters))
    assert np.array_equal(ends[0], ends[1])
