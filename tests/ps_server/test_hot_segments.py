"""The busiest segments, beside sorting them all."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dbelief.process.clock import ManualClock
from ps_server.hot_segments import WINDOW_S, HotSegments

COUNTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12)


@given(COUNTS, st.integers(1, 5))
def test_they_are_the_first_of_all_when_sorted(counts: list[tuple[int, int]], most: int) -> None:
    clock, now = ManualClock(), {n: before for n, (before, _) in enumerate(counts)}
    hottest = HotSegments(lambda: now, most, clock)
    assert hottest.top() == []
    assert math.isnan(hottest.share())
    now = {n: before + more for n, (before, more) in enumerate(counts)}
    clock.advance(2 * WINDOW_S)
    by_speed = sorted(range(len(counts)), key=lambda n: (-counts[n][1], n))
    assert hottest.top() == [(n, counts[n][1] / (2 * WINDOW_S)) for n in by_speed[:most]]
    total = sum(more for _, more in counts)
    if total:
        assert hottest.share() == max(more for _, more in counts) / total
    else:
        assert math.isnan(hottest.share())


def test_within_a_window_nothing_is_counted_again() -> None:
    clock, looks = ManualClock(), []

    def counts() -> dict[int, int]:
        looks.append(clock.now())
        return {7: 10 * len(looks), 8: len(looks)}

    hottest = HotSegments(counts, 1, clock)
    for _ in range(4):
        hottest.top()
        clock.advance(WINDOW_S / 2)
        hottest.share()
    assert len(looks) == 3
    assert hottest.top() == [(7, 10 / WINDOW_S)]


def test_counts_restart_with_a_new_segment_assignment() -> None:
    clock, now = ManualClock(), {0: 5}
    hottest = HotSegments(lambda: now, 1, clock)
    hottest.top()
    now = {0: 5, 1: 100}
    clock.advance(WINDOW_S)
    assert hottest.top() == []
    now = {0: 2, 1: 110}  # and one whose counts began anew
    clock.advance(WINDOW_S)
    assert hottest.top() == [(1, 10 / WINDOW_S)]
