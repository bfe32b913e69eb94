"""The staleness dial at 0: replicas in threads are one replica on the joint mini-batch, for any timing."""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from dbelief.core.push import Push
from dbelief.optim import make_rule
from dbelief.rpc.in_process import InProcessParameters, LocalShard
from ps_server.store.shard import Shard
from tests.equivalence.by_hand import Range, Server, gap, minibatches
from tests.equivalence.harness import Problem, Replica, in_threads, network, quadratic, serve, settings, values_of

RATE = 0.05
PATIENCE_S = 60.0
SHARES = [(0, 47), (47, 124), (124, 140), (140, 202)]
BATCHES = [6, 10, 2, 8]
"""By replica: the samples it trains, and how many at once. Eight rounds each, the last ones short but for replica 2."""
ROUNDS = 8
PROBLEMS = {"quadratic": quadratic(202), "network": network(202)}


class Turnstile:
    """A shard that lets the pushes of each round in by a drawn order of replicas, whenever they come."""

    def __init__(self, shard: LocalShard, seed: list[int], replicas: int) -> None:
        self._shard = shard
        self._orders = [np.random.default_rng([*seed, clock]).permutation(replicas).tolist() for clock in range(ROUNDS)]
        self._turn = threading.Condition()
        self._let_in: dict[tuple[int, int], int] = {}
        self.pull = shard.pull
        self.wait_for_clock = shard.wait_for_clock
        self.pulls_wait, self.open_round = shard.pulls_wait, shard.open_round
        self.exchange = shard.exchange

    def push(self, push: Push, index: int, gradient: np.ndarray, offset: int = 0, read_version: int = 0) -> Any:
        if push.assign:
            return self._shard.push(push, index, gradient, offset, read_version)
        place = self._orders[push.clock].index(push.pusher.replica)
        key = (push.clock, index)
        with self._turn:
            assert self._turn.wait_for(lambda: self._let_in.get(key, 0) == place, PATIENCE_S)
            taken = self._shard.push(push, index, gradient, offset, read_version)
            self._let_in[key] = place + 1
            self._turn.notify_all()
        return taken


def trained(problem: Problem, parameters: InProcessParameters, leases: Sequence[Sequence[Range]]) -> list[Replica]:
    """Train every replica's leases in a thread of its own."""
    replicas = [Replica(problem, parameters, settings(RATE, BATCHES[r]), r) for r in range(len(leases))]

    def work(one: Replica, ranges: Sequence[Range]) -> None:
        for start, stop in ranges:
            one.train(start, stop)

    in_threads(*(partial(work, *pair) for pair in zip(replicas, leases, strict=True)))
    for one in replicas:
        one.close()
    return replicas


def halves(count: int) -> list[list[Range]]:
    """Each replica's share as two leases, the first of four rounds."""
    cuts = [(start, start + 4 * batch, stop) for (start, stop), batch in zip(SHARES, BATCHES, strict=True)]
    return [[(a, b), (b, c)] for a, b, c in cuts[:count]]


def rounds(problem: Problem, rule_name: str, members: Sequence[Sequence[int]]) -> np.ndarray:
    """By hand: round by round the mean of the members' gradients by samples, summed in rising order of replica."""
    server, gradient = Server(problem.start, make_rule(rule_name, {})), problem.gradients()
    for clock, present in enumerate(members):
        parts = [minibatches([SHARES[r]], BATCHES[r])[clock] for r in sorted(present)]
        total = sum(stop - start for start, stop in parts)
        mean = np.zeros_like(server.w)
        for start, stop in parts:
            mean += gradient(server.w, start, stop) * np.float32((stop - start) / total)
        server.push(mean, RATE)
    return server.w


def joint(problem: Problem, rule_name: str, count: int) -> np.ndarray:
    """By hand: one replica on the samples of all replicas at once."""
    server = Server(problem.start, make_rule(rule_name, {}))
    for clock in range(ROUNDS):
        parts = [minibatches([SHARES[r]], BATCHES[r])[clock] for r in range(count)]
        chosen = np.concatenate([np.arange(start, stop) for start, stop in parts])
        of_these = Problem(problem.make, problem.inputs[chosen], problem.targets[chosen])
        server.push(of_these.gradients()(server.w, 0, len(chosen)), RATE)
    return server.w


@pytest.mark.parametrize("rule_name", ["sgd", "adagrad"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_replicas_in_threads_are_the_ordered_weighted_mean(problem: Problem, count: int, rule_name: str) -> None:
    parameters = serve(problem.start, make_rule(rule_name, {}), shards=3, replicas=count)
    replicas = trained(problem, parameters, halves(count))
    w = values_of(parameters)
    assert np.array_equal(w, rounds(problem, rule_name, [range(count)] * ROUNDS))
    for one in replicas:
        assert one.fetched == [(clock,) * len(one.fetched[0]) for clock in range(ROUNDS)]
        assert len(one.pushes) == ROUNDS
    for shard in parameters.shards:
        assert isinstance(shard, Shard)
        assert set(shard.versions()) == {ROUNDS}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_replicas_match_one_on_the_joint_batch_to_rounding(problem: Problem, count: int) -> None:
    w = rounds(problem, "sgd", [range(count)] * ROUNDS)
    one_batch = joint(problem, "sgd", count)
    assert gap(w, one_batch) < 1e-6
    assert gap(problem.start, one_batch) > 0.01, "nothing was trained"
    assert gap(rounds(problem, "sgd", [range(count - 1)] * ROUNDS), one_batch) > 1e-4, "the last replica counts"


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_arrival_matters(seed: int) -> None:
    """Each shard is given its own order of replicas in each round."""
    problem, count = PROBLEMS["quadratic"], 4
    parameters = serve(problem.start, make_rule("adagrad", {}), shards=2, replicas=count)
    parameters.shards = [Turnstile(shard, [seed, n], count) for n, shard in enumerate(parameters.shards)]
    trained(problem, parameters, halves(count))
    assert np.array_equal(values_of(parameters), rounds(problem, "adagrad", [range(count)] * ROUNDS))


def test_leaving_replicas_are_not_waited_for(problem: Problem) -> None:
    """Replica 2 takes part in the first lease's rounds only; the others go on without it."""
    parameters = serve(problem.start, make_rule("sgd", {}), shards=2, replicas=3)
    for shard in parameters.shards:
        assert isinstance(shard, Shard)
        shard.set_membership(2, [(0, range(3)), (4, range(2))])
    replicas = trained(problem, parameters, [*halves(2), halves(3)[2][:1]])
    assert [len(one.pushes) for one in replicas] == [8, 8, 4]
    assert np.array_equal(values_of(parameters), rounds(problem, "sgd", [range(3)] * 4 + [range(2)] * 4))
