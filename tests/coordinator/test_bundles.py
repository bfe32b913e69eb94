"""Passes computed by replicas of any speed, in simulated time: nothing twice, nothing left out, and not much slower."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.bundles import Bundle, Pass


def simulated(turn: Pass, seconds: Sequence[float]) -> float:
    """The time that a pass takes where replica i needs seconds[i] for a portion."""
    queue = [(0.0, number) for number in range(len(seconds))]
    holds: dict[int, Bundle] = {}
    idle: list[int] = []
    now_s = 0.0
    while not turn.complete:
        assert queue, "nobody has work, and the pass is not complete"
        now_s, number = heapq.heappop(queue)
        if number in holds:
            bundle = holds.pop(number)
            turn.told(number, bundle.number, float(bundle.portions), bundle.portions, now_s)
            for waiting in idle:
                heapq.heappush(queue, (now_s, waiting))
            idle.clear()
        work = turn.take(number, number, len(seconds), now_s)
        if work is None:
            idle.append(number)
        else:
            holds[number] = work
            heapq.heappush(queue, (now_s + work.portions * seconds[number], number))
    return now_s


SLOW = [0.02, 0.02, 0.02, 0.2]
"""Seconds of a portion: one of four replicas ten times slower."""


def ideal(portions: int) -> float:
    return portions / sum(1 / s for s in SLOW)


def test_a_slow_replica_costs_little() -> None:
    assert simulated(Pass(64, 4), SLOW) <= 1.25 * ideal(64)


def test_what_small_portions_and_backups_are_for() -> None:
    static = simulated(Pass(4, 1, backups=False), SLOW) / ideal(4)
    coarse = simulated(Pass(16, 1, backups=False), SLOW) / ideal(16)
    assert 7 <= static <= 8
    assert 1.5 <= coarse <= 2.0
    assert simulated(Pass(16, 1), SLOW) / ideal(16) < 0.8 * coarse


@given(
    st.integers(1, 80),
    st.integers(1, 9),
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_every_portion_is_in_one_bundle(
    portions: int, most: int, seconds: list[float], backups: bool, ordered: bool
) -> None:
    turn = Pass(portions, most, backups, ordered)
    simulated(turn, seconds)
    bundles = {run.bundle for run in turn.runs}
    held = sorted(portion for bundle in bundles for portion in range(bundle.first, bundle.stop))
    assert held == list(range(portions))
    assert len({bundle.number for bundle in bundles}) == len(bundles) == turn.done
    assert max(bundle.portions for bundle in bundles) <= most
    assert turn.samples == turn.loss_sum == portions
    assert sum(run.won for run in turn.runs) == turn.done
    assert turn.won == sum(run.won and run.backup for run in turn.runs)
    assert turn.launched == sum(run.backup for run in turn.runs)


@given(st.integers(1, 60), st.integers(1, 7), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5))
def test_in_order_the_bundles_do_not_depend_on_who_computes_them(
    portions: int, most: int, seconds: list[float]
) -> None:
    turn = Pass(portions, most, ordered=True)
    simulated(turn, seconds)
    cuts = [Bundle(i // most + 1, i, min(most, portions - i)) for i in range(0, portions, most)]
    assert sorted({run.bundle for run in turn.runs}) == cuts


def test_replicas_of_one_speed_go_on_where_they_were() -> None:
    turn = Pass(1_000, 4)
    simulated(turn, [0.02] * 4)
    follows = before = 0
    last: dict[int, int] = {}
    for run in turn.runs:
        if run.replica in last:
            before += 1
            follows += last[run.replica] == run.bundle.first
        last[run.replica] = run.bundle.stop
    assert follows >= 0.9 * before


@given(st.integers(0, 10_000))
def test_whoever_dies_or_repeats_every_portion_counts_once(seed: int) -> None:
    """Lives end at any moment, calls are repeated, and another coordinator goes on from what was written."""
    rng = random.Random(seed)
    turn = Pass(rng.randint(1, 40), rng.randint(1, 5), rng.random() < 0.7, rng.random() < 0.3)
    holds: dict[int, Bundle] = {}
    portions: set[int] = set()
    life = 3
    lives = [0, 1, 2]
    for now_s in range(10_000):
        if turn.complete:
            break
        which = rng.randrange(3)
        one, what = lives[which], rng.random()
        if what < 0.05:
            turn.gone(one, now_s)
            if rng.random() < 0.3 and one in holds:  # what it had computed arrives all the same
                deliver(turn, portions, one, holds[one], now_s)
            holds.pop(one, None)
            lives[which], life = life, life + 1
        elif what < 0.08:
            heir = Pass(turn.portions, turn._most, turn._backups, turn._ordered)
            heir.restore(json.loads(json.dumps(turn.state())))
            turn = heir
        elif what < 0.5 and one in holds:
            deliver(turn, portions, one, holds[one], now_s)
            if rng.random() < 0.8:  # else the answer was lost, and it will be told again
                del holds[one]
        elif one not in holds:
            work = turn.take(which, one, 3, now_s)
            if work is not None:
                holds[one] = work
    assert turn.complete
    assert portions == set(range(turn.portions))
    assert turn.samples == turn.portions


def deliver(turn: Pass, portions: set[int], one: int, bundle: Bundle, now_s: float) -> None:
    if turn.told(one, bundle.number, 0.0, bundle.portions, now_s):
        new = set(range(bundle.first, bundle.stop))
        assert not new & portions
        portions |= new


def test_a_repeated_call_gets_the_same() -> None:
    turn = Pass(10, 2)
    assert turn.take(0, 7, 2, 0.0) == turn.take(0, 7, 2, 1.0)
    assert len(turn.runs) == 1


def test_the_idle_copy_what_has_been_under_way_the_longest() -> None:
    turn = Pass(3, 1)
    bundles: Mapping[int, Bundle | None] = {life: turn.take(life, life, 3, 0.0) for life in range(3)}
    assert turn.told(2, bundles[2].number, 0.0, 1, 1.0)  # type: ignore[union-attr]
    assert turn.take(2, 2, 3, 1.0) == bundles[0]
    assert turn.take(3, 3, 3, 1.0) == bundles[1], "the other one is computed twice already"
    assert turn.launched == 2


@pytest.mark.parametrize("portions", [1, 3])
def test_without_backups_the_idle_wait(portions: int) -> None:
    turn = Pass(portions, 1, backups=False)
    for life in range(portions):
        assert turn.take(life, life, portions, 0.0) is not None
    assert turn.take(9, 9, portions, 0.0) is None
