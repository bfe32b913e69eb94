"""Groups that break in the middle of a step, and meet again: all end with the bits they would have had."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dbelief import job
from dbelief.errors import RankFailure
from dbelief.optim import make_rule
from worker.comm import Communicator
from worker.comm.engine import Engine, Handle, Message
from worker.strategies import group_methods

from .by_hand import Server
from .groups import BATCH, ETA, RULES, A, Workers, easgd, even, sgd, summed, workers
from .harness import network

COUNT, STEPS = 3, 4
EACH = BATCH * STEPS
STRATEGIES: dict[str, job.SyncSgd | job.Elastic] = {
    "sync-sgd": sgd(RULES[1]),
    "sync-easgd 2": easgd(2),
    "sync-easgd 3": easgd(3, "ring"),
}
LACKING = [lacks for some in (1, 2, 3) for lacks in combinations(range(COUNT), some)]


@pytest.fixture(params=list(STRATEGIES))
def strategy(request: pytest.FixtureRequest) -> job.SyncSgd | job.Elastic:
    return STRATEGIES[request.param]


def ends(group: Workers) -> tuple[list[list[bytes]], bytes]:
    """All that the next step of anybody depends on."""
    return [one.has() for one in group.members], group.stored.tobytes()


def undisturbed(strategy: job.SyncSgd | job.Elastic) -> tuple[list[list[bytes]], bytes]:
    with workers(network(EACH * COUNT), strategy, COUNT) as group:
        assert group.train(*even(COUNT, EACH)) == 1
        return ends(group)


class Lossy:
    """The sum over a group, of which, the `at`th time, some ranks hear that it is lost, and have garbage."""

    def __init__(self, comm: Communicator, reduction: job.Reduction, size: int, lacks: Sequence[int], at: int) -> None:
        self._reduce = MAKE_ALLREDUCE(comm, reduction, size)
        self._left = at if comm.rank in lacks else 0

    def __call__(self, array: np.ndarray) -> None:
        self._reduce(array)
        self._left -= 1
        if self._left == 0:
            array[:] = np.nan
            raise RankFailure("the sum was lost")


MAKE_ALLREDUCE = group_methods.make_allreduce


@pytest.mark.parametrize("at", [1, 2, STEPS])
@pytest.mark.parametrize("lacks", LACKING, ids=str)
def test_member_without_last_step_ends_with_the_same_bits(
    strategy: job.SyncSgd | job.Elastic, lacks: tuple[int, ...], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have the sum, and go on in vain; or all lack it, and make the step again."""
    expected = undisturbed(strategy)
    monkeypatch.setattr(group_methods, "make_allreduce", lossy(lacks, at, []))
    with workers(network(EACH * COUNT), strategy, COUNT) as group:
        assert group.train(*even(COUNT, EACH)) == 2
        assert ends(group) == expected


def lossy(lacks: Sequence[int], at: int, made: list[int]) -> Any:
    """Makes sums of which the first group's lose the `at`th one; `made` has who has made them."""

    def make(comm: Communicator, reduction: job.Reduction, size: int) -> Any:
        first = len(made) < COUNT
        made.append(comm.rank)
        return Lossy(comm, reduction, size, lacks, at) if first else MAKE_ALLREDUCE(comm, reduction, size)

    return make


class Failing:
    """An engine whose rank loses its group when it is to start messages for the `last`th time."""

    def __init__(self, engine: Engine, last: int) -> None:
        self._engine, self._left = engine, last
        self.rank, self.size, self.xp = engine.rank, engine.size, engine.xp
        self.check, self.abort, self.close = engine.check, engine.abort, engine.close

    def start(self, messages: Sequence[Message]) -> Handle:
        self._left -= 1
        if self._left == 0:
            raise RankFailure("the network failed")
        return self._engine.start(messages)


@pytest.mark.parametrize("rank", range(COUNT))
def test_a_group_may_break_at_any_message(strategy: job.SyncSgd | job.Elastic, rank: int) -> None:
    """While they agree on the last step, and while they sum; in the first generation, and in the second one again."""
    expected, broken = undisturbed(strategy), 0
    for first, second in [(last, 0) for last in range(1 + rank, 22, 2)] + [
        (last, again) for last in (8, 9) for again in (1, 3, 4, 7)
    ]:

        def engine(generation: int, inner: Engine, fails: tuple[int, int] = (first, second)) -> Engine:
            last = fails[generation - 1] if generation <= 2 else 0
            return Failing(inner, last) if last and inner.rank == rank else inner

        with workers(network(EACH * COUNT), strategy, COUNT) as group:
            group.hall.engine = engine
            broken += group.train(*even(COUNT, EACH)) > 1
            assert ends(group) == expected, (first, second)
    assert broken > 8


@pytest.mark.parametrize("last", range(1, 16))
def test_half_received_step_is_discarded(
    strategy: job.SyncSgd | job.Elastic, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one has a step, and dies at some message while it gives it to the others: those two still agree."""
    monkeypatch.setattr(group_methods, "make_allreduce", lossy((1, 2), 2, []))
    with workers(network(EACH * COUNT), strategy, COUNT) as group:
        group.hall.engine = lambda generation, inner: (
            Failing(inner, last) if (generation, inner.rank) == (2, 0) else inner
        )
        group.train(*even(COUNT, EACH), at_most=2)
        group.members.pop(0).together.close()
        group.train(*even(2, EACH))
        shared = 1 + len(group.members[0].method.state())
        first, second = (one.has()[:shared] for one in group.members)
        assert first == second
        assert np.isfinite(group.stored).all()


def test_joining_member_gets_the_groups_state() -> None:
    """Velocities too; and who is left when one dies goes on with them."""
    problem = network(5 * BATCH)
    with workers(problem, sgd(RULES[0], "server"), 2) as group:
        server, gradient = Server(problem.start, make_rule("momentum", {"mu": 0.9})), problem.gradients()

        def step(*batches: int) -> None:
            ranges = [(k * BATCH, (k + 1) * BATCH) for k in batches]
            group.train(*ranges)
            parts = [gradient(server.w, *one) * np.float32(1 / len(ranges)) for one in ranges]
            server.push(summed("server", parts), 0.1)
            for one in group.members:
                assert one.has()[:2] == [server.w.tobytes(), server.states[0].tobytes()]

        step(0, 1)
        step(2, 3)
        group.members.append(group.new())
        step(0, 4, 1)
        group.members.pop(0)
        step(3, 2)


@pytest.mark.parametrize("form", [2, 3])
def test_joining_member_starts_at_the_centre(form: int) -> None:
    problem = network(2 * EACH + BATCH)
    with workers(problem, easgd(form), 2, moving_rate=lambda rate: A) as group:
        group.train(*even(2, EACH))
        centre = group.stored
        group.members.append(group.new())
        group.train((0, BATCH), (BATCH, 2 * BATCH), (2 * EACH, 2 * EACH + BATCH))
        slope = problem.gradients()(centre, 2 * EACH, 2 * EACH + BATCH)
        np.testing.assert_array_equal(group.members[2].weights, centre - slope * np.float32(ETA))
