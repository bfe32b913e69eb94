"""DiLoCo: learners over shards have the bits of the algorithm by hand, and meet its neighbours at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.lease import DataLease
from dbelief.core.push import Pusher, PushResult, PushStats
from dbelief.core.rounds import Rounds
from dbelief.job import Diloco
from dbelief.optim import Rule, make_rule
from dbelief.rpc.in_process import InProcessParameters
from dbelief.training.local_rounds import DilocoSettings
from dbelief.training.phases import PhaseTimer
from tests.equivalence.by_hand import Server, gap, minibatches, sequential
from tests.equivalence.harness import HOST, in_threads, network, serve, values_of
from tests.examples import examples
from worker.strategies import diloco as replica

RATE = 0.05
PROBLEM = network(240)
Weigh = Literal["samples", "rate", "none"]
NOMINAL = 7
"""Numbers in a segment: twelve segments."""


@dataclass(frozen=True)
class Way:
    """What all learners have in common: the steps of a round, and how fragments are exchanged."""

    steps: int
    outer: Rule
    outer_rate: float
    fragments: int = 1
    blend: float = 0.0
    weigh: Weigh = "samples"

    def weight(self, samples: int, steps: int) -> int:
        """Weight of a push in the mean of its round."""
        return Diloco(name="diloco", batch=1, weigh=self.weigh).weight(samples, steps)


@dataclass(frozen=True)
class Share:
    """Samples [start, stop) of a learner, in mini-batches; a push travels during `delay` of them.

    They are two leases, the first of one round.
    """

    start: int
    stop: int
    batch: int
    delay: int = 0

    def leases(self, steps: int) -> list[list[list[tuple[int, int]]]]:
        """The mini-batches of each round of each lease."""
        batches = minibatches([(self.start, self.stop)], self.batch)
        rounds = [batches[first : first + steps] for first in range(0, len(batches), steps)]
        return [rounds[:1], rounds[1:]] if rounds[1:] else [rounds]


class Learner:
    """One replica, and what its rounds completed."""

    def __init__(self, shards: InProcessParameters, share: Share, inner: Rule, way: Way, number: int) -> None:
        rounds = Rounds(share.batch, way.steps, way.fragments)
        settings = DilocoSettings(
            rounds, inner, lambda samples: RATE, way.outer_rate, None, share.delay, way.blend, way.weight
        )
        self.done: list[tuple[int, int, int]] = []
        self._leases = [[one[0][0][0], one[-1][-1][1], len(one)] for one in share.leases(way.steps)]
        model, part, pusher = PROBLEM.make(), PROBLEM.layout.part(0), Pusher(number, number + 1)
        phases = PhaseTimer()
        self._replica = replica.Diloco(model, part, HOST, shards, pusher, PROBLEM, settings, phases, self._acknowledged)
        self.close = self._replica.close

    def train(self) -> None:
        """Train its leases."""
        clock = 0
        for number, (start, stop, rounds) in enumerate(self._leases):
            self._replica.train(DataLease(number + 1, 0, start, stop, 0, clock), clock + 1)
            clock += rounds

    def _acknowledged(self, done: PushStats, pushed: PushResult) -> None:
        self.done.append((done.sequence, done.samples, done.position))


def trained(shares: Sequence[Share], inner: Rule, way: Way) -> np.ndarray:
    """What learners in threads make of it, over two shards."""
    shards = serve(PROBLEM.start, way.outer, nominal=NOMINAL, replicas=len(shares))
    with ExitStack() as stack:
        learners = [Learner(shards, share, inner, way, number) for number, share in enumerate(shares)]
        for learner in learners:
            stack.enter_context(closing(learner))
        in_threads(*(learner.train for learner in learners))
    for learner, share in zip(learners, shares, strict=True):
        leases = share.leases(way.steps)
        assert [number for number, _, _ in learner.done] == list(range(1, sum(map(len, leases)) + 1))
        assert sum(samples for _, samples, _ in learner.done) == share.stop - share.start
        ends = [position for _, _, position in learner.done]
        assert [ends[len(leases[0]) - 1], ends[-1]] == [
            one[-1][-1][1] - one[0][0][0] for one in (leases[0], leases[-1])
        ]
    return values_of(shards)


class ByHand:
    """One learner of `by_hand`: its vector, and what it has sent and fetched."""

    def __init__(self, share: Share, inner: Rule, way: Way, dealt: Sequence[np.ndarray]) -> None:
        self._share, self._way, self._dealt = share, way, dealt
        self._gradient = PROBLEM.gradients()
        self._inner = Server(PROBLEM.start, inner)
        self._fetched, self._left, self._pending = PROBLEM.start.copy(), PROBLEM.start.copy(), list[int]()
        self._since = [[0, 0] for _ in dealt]

    def step(self, batches: Sequence[tuple[int, int]], servers: Sequence[Server]) -> None:
        """Do the mini-batches up to an exchange; what the last one brings is merged after `delay`, or at the end."""
        for number, (start, stop) in enumerate(batches, 1):
            self._inner.push(self._gradient(self._inner.w, start, stop), RATE)
            self._since = [[samples + stop - start, steps + 1] for samples, steps in self._since]
            if number == self._share.delay:
                self.merge(servers)
        self.merge(servers)

    def push(self, fragment: int) -> tuple[np.ndarray, int]:
        """The difference of a fragment, and its weight; what the shards make of it is pending."""
        own = self._dealt[fragment]
        samples, steps = self._since[fragment]
        self._since[fragment] = [0, 0]
        self._left[own] = self._inner.w[own]
        self._pending.append(fragment)
        return self._fetched[own] - self._inner.w[own], self._way.weight(samples, steps)

    def merge(self, servers: Sequence[Server]) -> None:
        """Merge: w <- w + (1 - blend) (arrived + (w - sent) - w)."""
        for fragment in self._pending:
            own, takes = self._dealt[fragment], np.float32(1 - self._way.blend)
            arrived = servers[fragment].w + (self._inner.w[own] - self._left[own])
            self._inner.w[own] = self._inner.w[own] + takes * (arrived - self._inner.w[own]) if takes < 1 else arrived
            self._fetched[own] = servers[fragment].w
        self._pending.clear()


def by_hand(shares: Sequence[Share], inner: Rule, way: Way) -> np.ndarray:
    """Douillard et al. 2023, algorithm 1, and 2025, algorithm 2, on one thread: an outer rule for each fragment.

    Means are summed in rising order of learner. In the last round of a lease all fragments are exchanged at its end.
    """
    spans = serve(PROBLEM.start, way.outer, nominal=NOMINAL).placement.spans
    count = min(way.fragments, len(spans))
    dealt = [np.concatenate([np.arange(one.start, one.stop) for one in spans[f::count]]) for f in range(count)]
    servers = [Server(PROBLEM.start[own], way.outer) for own in dealt]
    learners = [ByHand(share, inner, way, dealt) for share in shares]
    every = -(-np.arange(1, count + 1) * way.steps // count)  # ceil((f + 1) H / F)
    for leases in zip(*(share.leases(way.steps) for share in shares), strict=True):
        for rounds in zip(*leases, strict=True):
            ends, due = [way.steps], [list(range(count))]
            if rounds[0] is not leases[0][-1]:
                ends, due = every.tolist(), [[fragment] for fragment in due[0]]
            for begin, end, fragments in zip([0, *ends[:-1]], ends, due, strict=True):
                for learner, batches in zip(learners, rounds, strict=True):
                    learner.step(batches[begin:end], servers)
                for fragment in fragments:
                    pushed = [learner.push(fragment) for learner in learners]
                    total = sum(weight for _, weight in pushed)
                    mean = np.zeros_like(servers[fragment].w)
                    for difference, weight in pushed:
                        mean += difference * np.float32(weight / total)
                    servers[fragment].push(mean, way.outer_rate)
                for learner, share in zip(learners, shares, strict=True):
                    if not share.delay:
                        learner.merge(servers)
        for learner in learners:  # a lease begins with a fetch
            learner.merge(servers)
    return np.concatenate([server.w for server in servers])[np.argsort(np.concatenate(dealt))]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Share], int, int]:
    """Learners with equally many rounds, of different mini-batches and delays; the last round may be short.

    Also the steps of a round, and the number of fragments.
    """
    rounds, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    fragments = draw(st.integers(1, steps))
    shares = []
    for number in range(draw(st.integers(1, 4))):
        batch = draw(st.integers(1, 3))
        samples = batch * steps * (rounds - 1) + draw(st.integers(1, batch * steps))
        delay = draw(st.integers(0, steps // fragments))
        shares.append(Share(60 * number, 60 * number + samples, batch, delay))
    return shares, steps, fragments


@examples(50)
@given(
    schedules(),
    st.sampled_from(["sgd", "momentum", "adagrad", "adamw"]),
    st.sampled_from([("nesterov", 0.7), ("sgd", 1.0), ("adam", 0.01)]),
    st.sampled_from([0.0, 0.0, 0.3]),
    st.sampled_from(["samples", "rate", "none"]),
)
def test_it_has_the_bits_of_the_algorithm_by_hand(
    schedule: tuple[list[Share], int, int], inner: str, outer: tuple[str, float], blend: float, weigh: Weigh
) -> None:
    shares, steps, fragments = schedule
    way = Way(steps, make_rule(outer[0], {}), outer[1], fragments, blend, weigh)
    rule = make_rule(inner, {})
    assert np.array_equal(trained(shares, rule, way), by_hand(shares, rule, way))


SGD = make_rule("sgd", {})
THREE = [Share(0, 60, 5), Share(60, 120, 5), Share(120, 180, 5)]


def test_of_one_inner_step_it_is_synchronous_sgd_to_rounding() -> None:
    server, gradient = Server(PROBLEM.start, SGD), PROBLEM.gradients()
    for step in range(0, 60, 5):
        mean = np.mean([gradient(server.w, at + step, at + step + 5) for at in (0, 60, 120)], axis=0)
        server.push(mean, RATE)
    found = trained(THREE, SGD, Way(1, SGD, 1.0))
    assert gap(found, server.w) < 1e-6
    assert gap(PROBLEM.start, server.w) > 0.01, "nothing was trained"


@pytest.mark.parametrize(("delay", "fragments"), [(0, 1), (4, 1), (0, 3), (2, 3)])
@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
def test_one_learner_is_its_inner_rule_to_rounding(inner: str, delay: int, fragments: int) -> None:
    found = trained([Share(0, 120, 4, delay)], make_rule(inner, {}), Way(6, SGD, 1.0, fragments))
    assert gap(found, sequential(PROBLEM, [(0, 120)], 4, make_rule(inner, {}), RATE)) < 2e-6


@pytest.mark.parametrize("weigh", ["samples", "rate", "none"])
def test_an_outer_step_at_rate_1_is_the_weighted_mean_of_the_learners(weigh: Weigh) -> None:
    shares = [Share(0, 12, 2), Share(60, 66, 1), Share(120, 138, 3)]
    ends = [sequential(PROBLEM, [(one.start, one.stop)], one.batch, SGD, RATE) for one in shares]
    weights = {"samples": [12, 6, 18], "rate": [12 * 2, 6 * 1, 18 * 3], "none": [1, 1, 1]}
    mean = np.average(ends, axis=0, weights=weights[weigh])
    assert gap(trained(shares, SGD, Way(6, SGD, 1.0, weigh=weigh)), mean) < 1e-6


def test_fragments_that_are_due_at_one_step_are_as_one() -> None:
    one_round = [Share(0, 24, 4), Share(60, 78, 3)]
    one, five = (trained(one_round, SGD, Way(6, make_rule("nesterov", {}), 0.7, fragments)) for fragments in (1, 5))
    assert np.array_equal(one, five)


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (1, 3), (2, 2)])
def test_learners_that_keep_all_of_their_own_are_independent(fragments: int, delay: int) -> None:
    shares = [Share(0, 48, 2, delay), Share(60, 108, 2, delay)]
    ends = [sequential(PROBLEM, [(one.start, one.stop)], 2, make_rule("adam", {}), RATE) for one in shares]
    found = trained(shares, make_rule("adam", {}), Way(4, SGD, 1.0, fragments, blend=1.0))
    assert gap(found, np.mean(ends, axis=0)) < 1e-6
