"""Whatever the network does, every push is applied exactly once: the vector is the one without faults, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dbelief.pushes import Pusher
from tests.faults.closing import check_ledgers, check_vector
from tests.faults.network import Network
from tests.faults.plan import LONGEST_DELAY_S, Fault, Kind, Plan, Way
from tests.faults.shards import Shards, Trainer, integers, train

pytestmark = pytest.mark.processes

MANY = 10_000
WEIGHTS = {Kind.DROP: 0.1}
"""Silence costs a deadline each time."""


def draw(seed: int, pushers: int, pushes: int, runs: tuple[int, ...], share: float) -> Plan:
    """A plan for so many pushers with so many pushes each, on shards with so many segments."""
    ways = [{Way.PUSH: pushes * (1 + count), Way.PULL: max(1, pushes // 10) * count} for count in runs]
    links = {f"{who}.{shard}": ways[shard] for who in range(pushers) for shard in range(len(runs))}
    return Plan.draw(seed, links, share, WEIGHTS)


def push_through(shards: Shards, plan: Plan, pushers: list[Pusher], pushes: int, deadline_s: float) -> Network:
    """Push as many of each pusher through the network of this plan, and check what came of it."""
    before = shards.read()
    network = Network(plan)
    with network.installed():
        trainers = [
            Trainer(
                shards,
                who,
                integers(who.incarnation, pushes, shards.placement.size),
                lambda placement, who=who: network.places(str(who.replica), placement),  # type: ignore[misc]
            )
            for who in pushers
        ]
        train(trainers, deadline_s)
    pushed = np.sum([trainer.gradients.sum(axis=0) for trainer in trainers], axis=0)
    for trainer in trainers:
        trainer.client.close()
    check_vector(shards.read(), before - pushed, plan)
    check_ledgers(shards.stats(), dict.fromkeys(pushers, pushes), plan)
    return network


def test_a_slice_of_ten_thousand_pushes(serve: Callable[..., Shards]) -> None:
    """Two shards, one of which answers in the middle of each push."""
    plan = draw(seed=11, pushers=3, pushes=100, runs=(20, 3), share=0.01)
    pushers = [Pusher(number, 10 + number) for number in range(3)]
    network = push_through(serve((20, 3)), plan, pushers, 100, deadline_s=100)
    assert network.met.keys() >= set(Kind) - {Kind.DROP}, f"{network.met}; {plan}"


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1])
def test_ten_thousand_pushes(serve: Callable[..., Shards], seed: int) -> None:
    runs, count = (3, 2, 1), 5
    plan = draw(seed, pushers=count, pushes=MANY // count, runs=runs, share=0.02)
    pushers = [Pusher(number, 10 + number) for number in range(count)]
    network = push_through(serve(runs), plan, pushers, MANY // count, deadline_s=500)
    assert network.met.keys() == set(Kind)
    assert sum(network.met.values()) > 0.9 * len(plan.faults)
    print(f"{MANY} pushes, {sum(network.met.values())} faults: {dict(network.met)}")


@pytest.fixture(scope="module")
def lasting() -> Iterator[Shards]:
    """Shards that stay for all examples of a property: pushers come and go."""
    shards = Shards((18, 1))
    yield shards
    shards.close()


LIVES = itertools.count(100)


@st.composite
def few_faults(draw: st.DrawFn) -> tuple[Fault, ...]:
    """A few faults on the way of two pushers, early enough to be met."""
    places = st.tuples(st.sampled_from(["0.0", "0.1", "1.0", "1.1"]), st.integers(0, 40))
    kinds = st.sampled_from([kind for kind in Kind if kind is not Kind.DROP])
    faults = []
    for link, at in draw(st.lists(places, max_size=6, unique=True)):
        kind = draw(kinds)
        amount = {Kind.DELAY: LONGEST_DELAY_S, Kind.LATE: draw(st.integers(1, 50))}.get(kind, 0)
        faults.append(Fault(link, Way.PUSH, at, kind, amount))
    return tuple(faults)


@given(faults=few_faults())
@settings(max_examples=12)
def test_any_few_faults_leave_no_trace(lasting: Shards, faults: tuple[Fault, ...]) -> None:
    plan = Plan(None, faults)
    note(str(plan))
    pushers = [Pusher(number, next(LIVES)) for number in range(2)]
    push_through(lasting, plan, pushers, 3, deadline_s=60)
