"""With any network faults every push is applied exactly once: vector and rows are those without faults, bit for bit."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from dbelief.core.push import Pusher
from dbelief.rpc.wire import bulk
from dbelief.sparse.row_hash import table_salt
from dbelief.sparse.table import SparseTable
from tests.examples import examples
from tests.faults.invariants import check_ledgers, check_vector
from tests.faults.network import Network
from tests.faults.plan import LONGEST_DELAY_S, Fault, Kind, Plan, Way
from tests.faults.shards import Shards, SparseGradients, Trainer, integers, train
from tests.faults.standin import Host

pytestmark = pytest.mark.processes

RUNS = (20, 3)
"""Segments of two shards: the first one acknowledges a push in its middle, too."""
LENGTH = 3
TOGETHER = 7
"""Segments that share a message."""
WEIGHTS = {Kind.DROP: 0.1}
"""Silence costs a deadline each time."""
KEYS = np.arange(-30, 30) * 1_000_003
TABLE = SparseTable("counts", 2, table_salt(0, "counts"), 0.0, 1.0, sum(RUNS), 5)
"""Rows from zeros at rate 1: sums of whole numbers."""


@pytest.fixture(scope="module", autouse=True)
def _few_segments_in_a_message() -> Iterator[None]:
    """Let streams break within pushes, however small these are."""
    with patch.object(bulk, "FULL_BYTES", TOGETHER * 4 * LENGTH):
        yield


def draw(seed: int, pushers: int, pushes: int, runs: tuple[int, ...], share: float, rows: bool) -> Plan:
    """A plan for so many pushers with so many pushes each, on shards with so many segments, and with rows."""
    messages = [math.ceil(count / TOGETHER) + rows for count in runs]
    ways = [{Way.PUSH: pushes * each, Way.PULL: max(1, pushes // 10) * each} for each in messages]
    links = {f"{who}.{shard}": ways[shard] for who in range(pushers) for shard in range(len(runs))}
    return Plan.draw(seed, links, share, WEIGHTS)


def push_through(shards: Shards, plan: Plan, pushers: list[Pusher], pushes: int, deadline_s: float) -> Network:
    """Push as many of each pusher through the network of this plan, and check what came of it."""
    before, table = shards.read(), shards.table
    drawn = [SparseGradients.draw(who.incarnation, pushes, table, KEYS) for who in pushers] if table is not None else []
    network = Network(plan)
    with network.installed():
        trainers = [
            Trainer(shards, who, integers(who.incarnation, pushes, shards.placement.size), network, rows=rows)
            for who, rows in itertools.zip_longest(pushers, drawn)
        ]
        train(trainers, deadline_s)
    pushed = np.sum([trainer.gradients.sum(axis=0) for trainer in trainers], axis=0)
    for trainer in trainers:
        trainer.client.close()

    def check() -> None:
        check_vector(shards.read(), before - pushed, plan)
        check_ledgers(shards.stats(), dict.fromkeys(pushers, pushes), plan)
        if drawn:
            total = np.sum([rows.total for rows in drawn], axis=0)
            check_vector(shards.read_rows(KEYS).reshape(-1), 0 - total.reshape(-1), plan)

    check()
    if shards.followers:
        shards.promote()
        check()
    return network


def check_many(shards: Shards, seed: int, pushes: int, share: float, deadline_s: float) -> Counter[Kind]:
    """So many pushes in all through a bad network; how often each kind of fault happened."""
    pushers = [Pusher(number, 10 + number) for number in range(5)]
    plan = draw(seed, len(pushers), pushes // len(pushers), RUNS, share, shards.table is not None)
    met = push_through(shards, plan, pushers, pushes // len(pushers), deadline_s).met
    assert sum(met.values()) > 0.9 * len(plan.faults), f"{met} of {plan}"
    return met


@pytest.mark.parametrize(
    ("pushes", "more"), [(400, {}), (200, {"table": TABLE, "replicated": True})], ids=["dense", "rows and followers"]
)
def test_a_slice_of_ten_thousand_pushes(serve: Callable[..., Shards], pushes: int, more: dict[str, Any]) -> None:
    met = check_many(serve(RUNS, LENGTH, **more), seed=11, pushes=pushes, share=0.03, deadline_s=100)
    assert met.keys() >= set(Kind) - {Kind.DROP}, met


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1])
def test_ten_thousand_pushes(serve: Callable[..., Shards], seed: int) -> None:
    met = check_many(serve(RUNS, LENGTH), seed, pushes=10_000, share=0.03, deadline_s=500)
    assert met.keys() == set(Kind)
    print(f"10,000 pushes of seed {seed} through {sum(met.values())} faults, applied exactly once: {dict(met)}")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_thousand_sparse_pushes_to_processes(tmp_path: Path) -> None:
    """Two shards and their followers, each a process."""
    with (
        closing(Host(tmp_path)) as host,
        closing(Shards(RUNS, LENGTH, host, table=TABLE, replicated=True)) as shards,
    ):
        met = check_many(shards, seed=2, pushes=10_000, share=0.03, deadline_s=500)
    assert met.keys() == set(Kind)
    print(f"10,000 sparse pushes through {sum(met.values())} faults, applied exactly once: {dict(met)}")


@pytest.fixture(scope="module")
def lasting() -> Iterator[Shards]:
    """Shards that stay for all examples of a property: pushers come and go."""
    shards = Shards((18, 1), LENGTH)
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
@examples(12)
def test_any_few_faults_leave_no_trace(lasting: Shards, faults: tuple[Fault, ...]) -> None:
    plan = Plan(None, faults)
    note(str(plan))
    pushers, before = [Pusher(number, next(LIVES)) for number in range(2)], lasting.read()
    push_through(lasting, plan, pushers, 3, deadline_s=60)
    pushed = sum(integers(who.incarnation, 3, lasting.placement.size).sum(axis=0) for who in pushers)
    np.testing.assert_array_equal(lasting.read(), before - pushed)
