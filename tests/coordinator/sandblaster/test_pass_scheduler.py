"""Passes computed by replicas of any speed, in simulated time: nothing twice, nothing left out, and not much slower."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.messages import BundleResult
from coordinator.sandblaster.pass_scheduler import ATTEMPTS, Bundle, PassScheduler
from dbelief.core.push import MOST_AHEAD


def simulated(turn: PassScheduler, seconds: Sequence[float]) -> float:
    """The time that a pass takes where replica i needs seconds[i] for a portion."""
    everyone = range(len(seconds))
    queue = [(0.0, number) for number in everyone]
    holds: dict[int, Bundle] = {}
    idle: list[int] = []
    now_s = 0.0
    while not turn.complete:
        assert queue, "nobody has work, and the pass is not complete"
        now_s, number = heapq.heappop(queue)
        if number in holds:
            bundle = holds.pop(number)
            turn.record_result(number, BundleResult(0, bundle.number, bundle.portions, bundle.portions), now_s)
            for waiting in idle:
                heapq.heappush(queue, (now_s, waiting))
            idle.clear()
        work = turn.grant(number, number, everyone, now_s)
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
    assert simulated(PassScheduler(64, 4), SLOW) <= 1.25 * ideal(64)
    later = PassScheduler(64, 4, paces=dict(enumerate(SLOW)))
    assert simulated(later, SLOW) <= 1.1 * ideal(64)
    assert {run.bundle.portions for run in later.runs if run.replica == 3 and not run.backup} == {1}


def test_small_portions_and_backup_tasks_shorten_a_pass() -> None:
    static = simulated(PassScheduler(4, 1, backups=False), SLOW) / ideal(4)
    coarse = simulated(PassScheduler(16, 1, backups=False), SLOW) / ideal(16)
    assert 7 <= static <= 8
    assert 1.5 <= coarse <= 2.0
    assert simulated(PassScheduler(16, 1), SLOW) / ideal(16) < 0.8 * coarse


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
    turn = PassScheduler(portions, most, backups, ordered)
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
def test_ordered_bundles_do_not_depend_on_replicas(portions: int, most: int, seconds: list[float]) -> None:
    turn = PassScheduler(portions, most, ordered=True)
    simulated(turn, seconds)
    cuts = [Bundle(i // most + 1, i, min(most, portions - i)) for i in range(0, portions, most)]
    assert sorted({run.bundle for run in turn.runs}) == cuts


def test_ordered_bundles_run_ahead_by_a_bound() -> None:
    turn = PassScheduler(2 * MOST_AHEAD, 1, backups=False, ordered=True)
    assert turn.grant(0, 10, [0, 1], 0.0) == Bundle(1, 0, 1)
    for number in range(2, MOST_AHEAD + 1):
        assert turn.grant(1, 11, [0, 1], 0.0) == Bundle(number, number - 1, 1)
        turn.record_result(11, BundleResult(0, number, 1.0, 1), 0.0)
    assert turn.grant(1, 11, [0, 1], 0.0) is None
    turn.holder_lost(10, died=True, now_s=0.0)
    assert turn.grant(1, 11, [0, 1], 0.0) == Bundle(1, 0, 1)
    turn.record_result(11, BundleResult(0, 1, 1.0, 1), 0.0)
    assert turn.grant(1, 11, [0, 1], 0.0) == Bundle(MOST_AHEAD + 1, MOST_AHEAD, 1)


def test_replicas_of_one_speed_go_on_where_they_were() -> None:
    turn = PassScheduler(1_000, 4)
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
def test_every_portion_counts_once_after_any_failures(seed: int) -> None:
    """Lives end at any moment, ask ahead, and repeat calls; another coordinator goes on from what was written."""
    rng = random.Random(seed)
    turn = PassScheduler(rng.randint(1, 40), rng.randint(1, 5), rng.random() < 0.7, rng.random() < 0.3)
    portions: set[int] = set()
    lives = {which: which for which in range(3)}
    holds: dict[int, list[Bundle]] = {0: [], 1: [], 2: []}
    deaths = 2 * ATTEMPTS  # of the same bundle, some of them, at times
    for now_s in range(10_000):
        if turn.complete or turn.failed:
            break
        which = rng.randrange(3)
        one, what = lives[which], rng.random()
        if what < 0.05 and deaths:
            deaths -= 1
            turn.holder_lost(one, rng.random() < 0.5, now_s)
            if rng.random() < 0.3 and holds[which]:  # what it had computed arrives all the same
                deliver(turn, portions, one, holds[which][0], now_s)
            holds[which], lives[which] = [], max(lives.values()) + 1
        elif what < 0.08:
            successor = PassScheduler(turn.portions, turn._most, turn._backups, turn._ordered)
            successor.restore(json.loads(json.dumps(turn.state())))
            turn = successor
        elif what < 0.5 and holds[which]:
            deliver(turn, portions, one, holds[which][0], now_s)
            if rng.random() < 0.8:  # else the answer was lost, and it will be told again
                del holds[which][0]
        elif len(holds[which]) < 2:
            has = tuple(bundle.number for bundle in holds[which])
            work = turn.grant(which, one, range(3), now_s, has, ahead=bool(has))
            if work is not None and rng.random() < 0.9:  # else the answer was lost
                holds[which].append(work)
                assert work.number not in has
    assert turn.complete or turn.failed
    if turn.complete:
        assert portions == set(range(turn.portions))
        assert turn.samples == turn.portions


def deliver(turn: PassScheduler, portions: set[int], one: int, bundle: Bundle, now_s: float) -> None:
    if turn.record_result(one, BundleResult(0, bundle.number, 0.0, bundle.portions), now_s):
        new = set(range(bundle.first, bundle.stop))
        assert not new & portions
        portions |= new


def test_no_prefetch_near_the_end_of_a_pass() -> None:
    turn = PassScheduler(5, 1)
    first = turn.grant(0, 7, [0, 1], 0.0)
    second = turn.grant(1, 8, [0, 1], 0.0)
    assert first is not None
    assert second is not None
    assert turn.grant(0, 7, [0, 1], 0.0, (first.number,), ahead=True) is None, "3 are left for 2"
    for number in (3, 4, 5):
        last = turn.grant(2, 9, [0, 1], 0.0, (3, 4))
        assert last is not None
        assert last.number == number
    assert turn.grant(0, 7, [0, 1], 0.0, (first.number,), ahead=True) is None, "no copies for the busy"
    assert turn.grant(0, 7, [0, 1], 0.0, (first.number,)) == second, "nor of what it has itself"


def test_the_slow_do_not_hoard_at_all() -> None:
    turn = PassScheduler(16, 1, paces={0: 0.02, 1: 0.2})
    quick, slow = turn.grant(0, 7, [0, 1], 0.0), turn.grant(1, 8, [0, 1], 0.0)
    assert quick is not None
    assert slow is not None
    assert turn.grant(0, 7, [0, 1], 0.0, (quick.number,), ahead=True) is not None
    assert turn.grant(1, 8, [0, 1], 0.0, (slow.number,), ahead=True) is None


def test_repeatedly_failing_bundle_fails_the_pass() -> None:
    turn = PassScheduler(2, 1)
    bad = turn.grant(0, 10, [0, 1], 0.0)
    good = turn.grant(1, 11, [0, 1], 0.0)
    assert bad is not None
    assert good is not None
    assert turn.failed_at(10, bad.number, "ValueError: no", 1.0) == bad
    assert turn.failed_at(10, bad.number, "ValueError: no", 1.0) is None, "the call is repeated"
    assert turn.record_result(11, BundleResult(0, good.number, 0.0, 1), 1.0)
    assert turn.grant(1, 11, [0, 1], 1.0) == bad
    turn.holder_lost(11, True, 2.0)
    assert turn.failed is None
    successor = PassScheduler(2, 1)
    successor.restore(json.loads(json.dumps(turn.state())))
    assert successor.grant(0, 10, [0, 1], 2.0) == bad
    successor.failed_at(10, bad.number, "ValueError: no", 3.0)
    assert successor.failed == (bad, "ValueError: no")


def test_related_copies_count_as_one_failure() -> None:
    turn = PassScheduler(1, 1)
    for life in range(4):
        assert turn.grant(life, life, range(4), 0.0) is not None
    for life in range(3):
        turn.holder_lost(life, died=True, now_s=1.0)
    turn.holder_lost(3, died=False, now_s=1.0)
    for life in (5, 6):
        assert turn.grant(5, life, [5, 8], 2.0) is not None
        assert turn.grant(8, 80 + life, [5, 8], 2.0) is None or life == 5, "what killed somebody is for one at a time"
        for holder in (life, 80 + life):
            turn.holder_lost(holder, died=True, now_s=3.0)
    assert turn.failed is None
    assert turn.grant(5, 7, [5], 2.0) is not None
    turn.holder_lost(7, died=True, now_s=3.0)
    assert turn.failed is not None


def test_replicas_that_start_again_before_their_failure_is_detected_do_not_hold_a_bundle_without_a_gap() -> None:
    turn = PassScheduler(1, 1)
    assert turn.grant(0, 10, [0, 1], 0.0) == turn.grant(1, 11, [0, 1], 0.0)
    assert turn.grant(0, 20, [0, 1], 1.3) is not None, "10 has failed, and that is not detected yet"
    turn.holder_lost(10, died=True, now_s=2.0)
    turn.holder_lost(11, died=True, now_s=2.0)
    assert turn.grant(1, 21, [0, 1], 2.1) is None, "20 may have failed as well"
    turn.holder_lost(20, died=True, now_s=3.3)
    for life in (30, 40):
        assert turn.failed is None
        assert turn.grant(0, life, [0, 1], 3.5) is not None
        turn.holder_lost(life, died=True, now_s=5.5)
    assert turn.failed is not None


def test_failed_holder_gets_another_bundle_first() -> None:
    turn = PassScheduler(2, 1)
    one, other = turn.grant(0, 10, [0, 1], 0.0), turn.grant(1, 11, [0, 1], 0.0)
    assert one is not None
    turn.failed_at(10, one.number, "no", 1.0)
    turn.holder_lost(11, True, 1.0)
    assert turn.grant(0, 10, [0], 1.0) == other


def test_backups_copy_the_longest_running_bundle() -> None:
    turn = PassScheduler(3, 1)
    bundles: Mapping[int, Bundle | None] = {life: turn.grant(life, life, range(3), 0.0) for life in range(3)}
    assert turn.record_result(2, BundleResult(0, bundles[2].number, 0.0, 1), 1.0)  # type: ignore[union-attr]
    assert turn.grant(2, 2, range(3), 1.0) == bundles[0]
    assert turn.grant(3, 3, range(4), 1.0) == bundles[1], "the other one is computed twice already"
    assert turn.launched == 2


def test_pass_picture_spans_its_bundles() -> None:
    turn = PassScheduler(3, 2)
    first, second = turn.grant(0, 10, [0], 5.0), turn.grant(1, 11, [0], 5.5)
    assert first is not None
    assert second is not None
    assert turn.portions_done == 0
    assert turn.record_result(10, BundleResult(0, first.number, 0.0, first.portions), 6.0)
    assert turn.portions_done == first.portions
    left = turn.grant(0, 10, [0], 6.0)
    while left is not None and left.number != second.number:
        assert turn.record_result(10, BundleResult(0, left.number, 0.0, left.portions), 7.0)
        left = turn.grant(0, 10, [0], 7.0)
    assert turn.record_result(10, BundleResult(0, second.number, 0.0, second.portions), 8.0)
    assert turn.complete
    assert turn.portions_done == 3
    rows = turn.picture(8.0)
    assert rows[:2] == [[0, 1, 0, 1, False, 0.0, 1.0, True], [1, 2, 2, 1, False, 0.5, 3.0, False]]
    assert rows[-1] == [0, 2, 2, 1, True, 2.0, 3.0, True], "the copy won"


def test_pass_begun_by_another_coordinator_has_no_picture() -> None:
    turn = PassScheduler(1, 1)
    turn.grant(0, 10, [0], 5.0)
    successor = PassScheduler(1, 1)
    successor.restore(json.loads(json.dumps(turn.state())))
    assert successor.record_result(10, BundleResult(0, 1, 0.0, 1), 1.0), "who had it tells the successor"
    assert (successor.began_s, successor.picture(1.0)) == (None, [])


def test_a_replica_gets_no_copy_of_what_it_holds_from_another_coordinator() -> None:
    turn = PassScheduler(1, 1)
    held = turn.grant(0, 10, [0, 1], 0.0)
    assert held is not None
    successor = PassScheduler(1, 1)
    successor.restore(json.loads(json.dumps(turn.state())))
    assert successor.grant(1, 11, [0, 1], 1.0) == held, "nobody has told that it is held"
    assert successor.grant(0, 10, [0, 1], 1.0, holds=[held.number]) is None
    assert successor.record_result(10, BundleResult(0, held.number, 0.0, 1), 2.0)
    assert successor.complete
