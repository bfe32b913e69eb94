"""DiLoCo: learners over shards have the bits of the algorithm by hand, and meet its neighbours at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import Pusher, PushResult
from dbelief.optim import Rule, make_rule
from dbelief.rpc.in_process import InProcessParameters
from tests.equivalence.by_hand import Server, gap, minibatches, sequential
from tests.equivalence.harness import HOST, in_threads, network, pushes_of, serve, values_of
from tests.examples import examples
from worker.pipeline.buffers import PushStats
from worker.pipeline.phases import PhaseTimer
from worker.strategies.diloco import Diloco, DilocoSettings

RATE = 0.05
PROBLEM = network(240)


@dataclass(frozen=True)
class Share:
    """Samples [start, stop) of a learner, in rounds of `steps` mini-batches; a push travels during `delay` of them."""

    start: int
    stop: int
    batch: int
    steps: int
    delay: int = 0

    @property
    def rounds(self) -> list[list[tuple[int, int]]]:
        """The mini-batches of each round."""
        batches = minibatches([(self.start, self.stop)], self.batch)
        return [batches[first : first + self.steps] for first in range(0, len(batches), self.steps)]


class Learner:
    """One replica, and what its pushes completed."""

    def __init__(self, shards: InProcessParameters, share: Share, inner: Rule, outer_rate: float, number: int) -> None:
        cadence = FetchPushSchedule(share.batch, share.steps, share.steps)
        settings = DilocoSettings(cadence, inner, lambda samples: RATE, outer_rate, delay=share.delay)
        self.done: list[tuple[int, int, int]] = []
        self._share, self._pushes = share, pushes_of(cadence, share.stop - share.start)
        model, part, pusher = PROBLEM.make(), PROBLEM.layout.part(0), Pusher(number, number + 1)
        self._diloco = Diloco(model, part, HOST, shards, pusher, PROBLEM, settings, PhaseTimer(), self._acknowledged)
        self.close = self._diloco.close

    def train(self) -> None:
        """Train its share as two leases, cut at a round."""
        share = self._share
        cut = min(share.stop, share.start + share.batch * share.steps)
        self._diloco.train(DataLease(1, 0, share.start, cut, 0), 1)
        if cut < share.stop:
            self._diloco.train(DataLease(2, 0, cut, share.stop, 0, clock=1), 2)

    def _acknowledged(self, done: PushStats, pushed: PushResult) -> None:
        self.done.append((done.sequence, done.samples, done.steps))


def trained(shares: Sequence[Share], inner: Rule, outer: Rule, outer_rate: float) -> np.ndarray:
    """What learners in threads make of it, over two shards."""
    shards = serve(PROBLEM.start, outer, replicas=len(shares))
    with ExitStack() as stack:
        learners = [Learner(shards, share, inner, outer_rate, number) for number, share in enumerate(shares)]
        for learner in learners:
            stack.enter_context(closing(learner))
        in_threads(*(learner.train for learner in learners))
    for learner, share in zip(learners, shares, strict=True):
        sizes = [(sum(stop - start for start, stop in one), len(one)) for one in share.rounds]
        assert learner.done == [(number, *size) for number, size in enumerate(sizes, 1)]
    return values_of(shards)


def by_hand(shares: Sequence[Share], inner: Rule, outer: Rule, outer_rate: float) -> np.ndarray:
    """Douillard et al. 2023, algorithm 1, with means weighted by samples and summed in rising order of learner."""
    server, gradient = Server(PROBLEM.start, outer), PROBLEM.gradients()
    learners = [Server(PROBLEM.start, inner) for _ in shares]
    left = [PROBLEM.start] * len(shares)  # each learner's parameters when its last push began
    for clock in range(len(shares[0].rounds)):
        parts = [share.rounds[clock] for share in shares]
        samples = [sum(stop - start for start, stop in part) for part in parts]
        mean = np.zeros_like(server.w)
        for number, (learner, share, part) in enumerate(zip(learners, shares, parts, strict=True)):
            delay = share.delay if clock > 1 else 0  # the first round is a lease, whose end waits
            for step, (start, stop) in enumerate(part):
                if step == delay:
                    learner.w[:] = (learner.w - left[number]) + server.w
                learner.push(gradient(learner.w, start, stop), RATE)
            if len(part) <= delay:
                learner.w[:] = (learner.w - left[number]) + server.w
            left[number] = learner.w.copy()
            mean += (server.w - learner.w) * np.float32(samples[number] / sum(samples))
        server.push(mean, outer_rate)
    return server.w


@st.composite
def schedules(draw: st.DrawFn) -> list[Share]:
    """Learners with equally many rounds, of different mini-batches and delays; the last round may be short."""
    rounds, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    shares = []
    for number in range(draw(st.integers(1, 4))):
        batch = draw(st.integers(1, 3))
        samples = batch * steps * (rounds - 1) + draw(st.integers(1, batch * steps))
        shares.append(Share(60 * number, 60 * number + samples, batch, steps, draw(st.integers(0, steps))))
    return shares


@examples(50)
@given(
    schedules(),
    st.sampled_from(["sgd", "momentum", "adagrad", "adamw"]),
    st.sampled_from([("nesterov", 0.7), ("sgd", 1.0), ("adam", 0.01)]),
)
def test_it_has_the_bits_of_the_algorithm_by_hand(shares: list[Share], inner: str, outer: tuple[str, float]) -> None:
    name, rate = outer
    rules = make_rule(inner, {}), make_rule(name, {})
    assert np.array_equal(trained(shares, *rules, rate), by_hand(shares, *rules, rate))


THREE = [Share(0, 60, 5, 1), Share(60, 120, 5, 1), Share(120, 180, 5, 1)]


def test_of_one_inner_step_it_is_synchronous_sgd_to_rounding() -> None:
    server, gradient = Server(PROBLEM.start, make_rule("sgd", {})), PROBLEM.gradients()
    for step in range(0, 60, 5):
        mean = np.mean([gradient(server.w, at + step, at + step + 5) for at in (0, 60, 120)], axis=0)
        server.push(mean, RATE)
    found = trained(THREE, make_rule("sgd", {}), make_rule("sgd", {}), 1.0)
    assert gap(found, server.w) < 1e-6
    assert gap(PROBLEM.start, server.w) > 0.01, "nothing was trained"


@pytest.mark.parametrize("delay", [0, 4])
@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
def test_one_learner_is_its_inner_rule_to_rounding(inner: str, delay: int) -> None:
    found = trained([Share(0, 120, 4, 6, delay)], make_rule(inner, {}), make_rule("sgd", {}), 1.0)
    assert gap(found, sequential(PROBLEM, [(0, 120)], 4, make_rule(inner, {}), RATE)) < 2e-6


def test_an_outer_step_at_rate_1_is_the_mean_of_the_learners_by_samples() -> None:
    shares = [Share(0, 12, 2, 6), Share(60, 66, 1, 6), Share(120, 138, 3, 6)]
    ends = [sequential(PROBLEM, [(one.start, one.stop)], one.batch, make_rule("sgd", {}), RATE) for one in shares]
    mean = np.average(ends, axis=0, weights=[one.stop - one.start for one in shares])
    assert gap(trained(shares, make_rule("sgd", {}), make_rule("sgd", {}), 1.0), mean) < 1e-6
