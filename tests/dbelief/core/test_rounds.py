"""Rounds of a lease, and the fragments that are exchanged in them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import make_segments
from dbelief.core.rounds import Rounds, cut
from tests.examples import examples


@examples(50)
@given(
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 100), st.integers(1, 100), st.integers(1, 7)
)
def test_each_fragment_is_exchanged_once_in_a_round(
    batch: int, steps: int, fragments: int, total: int, start: int, script: int
) -> None:
    """Also where a step has another size than a mini-batch, but for the last one of a round."""
    rounds = Rounds(batch, steps, min(steps, fragments))
    exchanged: Counter[tuple[int, int]] = Counter()
    before = 0
    while before < total:
        end = min(total, (before // rounds.samples + 1) * rounds.samples)
        position = min(before + script, end)
        for number in rounds.due(before, position, total):
            exchanged[before // rounds.samples, number] += 1
        before = position
    assert set(exchanged.values()) == {1}
    assert len(exchanged) == -(-total // rounds.samples) * rounds.fragments


def test_exchanges_are_spread_over_a_round_but_the_last() -> None:
    rounds = Rounds(batch=2, steps=8, fragments=3)
    steps = [rounds.due(before, before + 2, 32) for before in range(0, 32, 2)]
    assert [list(due) for due in steps] == [[], [], [0], [], [], [1], [], [2], [], [], [], [], [], [], [], [0, 1, 2]]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 40])
def test_segments_are_dealt_to_fragments_in_turn(count: int) -> None:
    spans = make_segments([(0, 100), (100, 517), (517, 700)], 97)  # 2, 5 and 2 segments
    found = cut(spans, (100, 517), count)
    assert len(found) == min(count, 5)
    for number, fragment in enumerate(found):
        own = spans[2:7][number :: len(found)]
        assert [i for one in fragment.pieces for i in range(one.start, one.stop)] == [
            i - 100 for span in own for i in range(span.start, span.stop)
        ]
        assert fragment.within == (frozenset(span.index for span in own) if count > 1 else None)
