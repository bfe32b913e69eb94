"""When a key gets a row, and which rows are due, each against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbelief.sparse.row_hash import hashes
from dbelief.sparse.row_limits import RowLimits
from ps_server.tables.eviction import Eviction
from ps_server.tables.key_counters import KeyCounters
from tests.examples import examples

PUSHES = st.lists(st.sets(st.integers(0, 30), max_size=8), max_size=30)


def hashed(keys: set[int]) -> np.ndarray:
    return hashes(np.array(sorted(keys), np.int64), 5)


@examples(60)
@given(PUSHES, st.integers(2, 5))
def test_a_key_gets_a_row_at_its_due_push_where_counters_are_many(pushes: list[set[int]], after: int) -> None:
    counters, exact = KeyCounters(after, 1 << 20), dict.fromkeys(range(31), 0)
    for keys in pushes:
        reached = counters.reached(hashed(keys))
        for key, due in zip(sorted(keys), reached.tolist(), strict=True):
            exact[key] += 1
            assert due == (exact[key] >= after)


@examples(60)
@given(PUSHES, st.integers(2, 5))
def test_no_key_gets_its_row_late(pushes: list[set[int]], after: int) -> None:
    """Where few counters are shared by all keys; until they are halved."""
    counters, exact = KeyCounters(after, 64), dict.fromkeys(range(31), 0)
    for keys in pushes:
        reached = counters.reached(hashed(keys))
        for key, due in zip(sorted(keys), reached.tolist(), strict=True):
            exact[key] += 1
            assert due or exact[key] < after
        if np.count_nonzero(counters.held) > 24:
            return


def test_rare_keys_drop_out_and_others_do_not() -> None:
    counters = KeyCounters(6, 1 << 10)
    for _ in range(5):
        assert not counters.reached(hashed({-1})).any()
    rare = 0
    while counters.held.max() == 5:
        counters.reached(hashed({rare}))
        rare += 1
    assert 250 < rare < 600, "half of the counters"
    assert np.count_nonzero(counters.held) < 150, "5 is halved to 2, and 1 to 0, but where two keys share a counter"
    again = KeyCounters(6, 1 << 10)
    again.load(counters.held)
    for one in (counters, again):
        assert [one.reached(hashed({-1})).item() for _ in range(4)] == [False, False, False, True]
    other = KeyCounters(6, 1 << 11)
    other.load(counters.held)
    assert not other.held.any(), "of another number"


@examples(60)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 2**33), st.integers(1, 20))
def test_beyond_a_number_those_longest_without_a_push_are_due(stamps: list[int], number: int, recent: int) -> None:
    gone = Eviction(recent, None).due(np.array(stamps, np.uint32), number)
    if len(stamps) <= recent:
        assert gone is None
        return
    assert gone is not None
    stay = recent - recent // 8
    oldest = sorted(range(len(stamps)), key=lambda row: (-((number - stamps[row]) % 2**32), row))
    assert set(np.flatnonzero(gone)) == set(oldest[: len(stamps) - stay])


@examples(60)
@example([(0, 0), (0, 0), (4, 1)], 2)
@example([(1, key) for key in range(60)], 31)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=60), st.integers(2, 300))
def test_rows_go_after_their_time_and_at_most_a_sixteenth_later(pushes: list[tuple[int, int]], ttl_s: int) -> None:
    """Each push comes some seconds after the one before it, and has one key."""
    eviction, now_s, last = Eviction(None, ttl_s), 1_000_000, dict[int, tuple[int, int]]()
    for number, (wait_s, key) in enumerate(pushes, 1):
        now_s += wait_s
        last[key] = number, now_s
        eviction.clock_s = now_s
        eviction.pushed(number)
        keys = sorted(last)
        gone = eviction.due(np.array([last[one][0] for one in keys], np.uint32), number)
        gone = np.zeros(len(keys), np.bool_) if gone is None else gone
        for one, removed in zip(keys, gone.tolist(), strict=True):
            age_s = now_s - last[one][1]
            assert not removed or age_s >= ttl_s
            assert removed or age_s < ttl_s + math.ceil(ttl_s / 16)
            if removed:
                del last[one]
        saved, eviction = eviction.saved(), Eviction(None, ttl_s)
        eviction.load(saved)
        assert saved.size <= 2 * 18


def test_a_bucket_has_an_equal_share_of_the_limits() -> None:
    limits = RowLimits(after=3, counters=100_000, most=1_000, recent=64, ttl_s=60).of_bucket(32)
    assert limits == RowLimits(after=3, counters=4096, most=32, recent=2, ttl_s=60)
    assert RowLimits().of_bucket(7) == RowLimits(counters=1024)


@pytest.mark.parametrize("most", [None, 10])
def test_rows_that_are_too_old_go_before_the_number_counts(most: int | None) -> None:
    eviction = Eviction(most, 10)
    for number, clock_s in ((1, 100), (2, 105), (3, 120)):
        eviction.clock_s = clock_s
        eviction.pushed(number)
    stamps = np.array([1] * 8 + [2] * 2 + [3] * 9, np.uint32)
    gone = eviction.due(stamps, 3)
    assert gone is not None
    assert gone.tolist() == [True] * 10 + [False] * 9
    assert eviction.due(stamps[10:], 3) is None
