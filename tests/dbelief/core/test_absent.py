"""Ranges of numbers that took no part, against plain masks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.absent import (
    EVERYTHING,
    MOST,
    Ranges,
    checked,
    common,
    covers,
    in_segment,
    joined,
    of_tensors,
    pairs,
    present,
    within,
)
from dbelief.core.layout import Kind, Layout, SegmentSpan
from tests.examples import examples

N = 24
masks = st.lists(st.booleans(), min_size=N, max_size=N)


def ranges_of(mask: list[bool]) -> Ranges:
    return joined((at, at + 1) for at, absent in enumerate(mask) if absent)


def mask_of(ranges: Ranges, length: int = N) -> list[bool]:
    mask = np.zeros(length, bool)
    for start, stop in pairs(ranges):
        mask[start:stop] = True
    return mask.tolist()


@examples(100)
@given(masks, st.integers(0, N), st.integers(0, N))
def test_a_portion_of_the_ranges(mask: list[bool], one: int, other: int) -> None:
    start, stop = sorted((one, other))
    ranges = ranges_of(mask)
    assert checked(ranges) == ranges
    assert mask_of(ranges) == mask
    part = within(ranges, start, stop)
    assert checked(part) == part
    assert mask_of(part, stop - start) == mask[start:stop]
    assert covers(part, stop - start) == (start < stop and all(mask[start:stop]))
    left = np.zeros(stop - start, bool)
    for own in present(ranges, start, stop):
        assert not left[own].any()
        left[own] = True
    assert left.tolist() == [not absent for absent in mask[start:stop]]


@examples(100)
@given(st.lists(masks, min_size=1, max_size=4))
def test_absent_in_all(many: list[list[bool]]) -> None:
    both = common(ranges_of(mask) for mask in many)
    assert checked(both) == both
    assert mask_of(both) == [all(column) for column in zip(*many, strict=True)]
    assert common([*map(ranges_of, many), EVERYTHING]) == both


@pytest.mark.parametrize("ranges", [(1,), (2, 2), (3, 1), (0, 2, 2, 4)], ids=len)
def test_numbers_that_are_no_ranges_are_refused(ranges: Ranges) -> None:
    with pytest.raises(ValueError, match=r"^\d+ numbers that are no rising starts and stops of ranges$"):
        checked(ranges)


def test_more_ranges_than_a_push_can_have_are_refused() -> None:
    assert len(checked(range(MOST))) == MOST
    with pytest.raises(ValueError, match=r"^65,536 ranges that took no part, and a push can have 32,768$"):
        checked(range(2 * MOST))


def test_only_trained_numbers_are_absent() -> None:
    assert in_segment((0, 5, 7, 9), SegmentSpan(1, 4, 4)) == (0, 1, 3, 4)
    assert in_segment(EVERYTHING, SegmentSpan(1, 4, 4)) == (0, 4)
    assert in_segment(EVERYTHING, SegmentSpan(1, 4, 4, Kind.SUMMED)) == ()


def test_ranges_of_tensors() -> None:
    sizes = {"a": 2, "b": 3, "none": 0, "c": 4, "mean": 5}
    shapes = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    part = Layout.of(shapes, kinds={"mean": Kind.SUMMED}).part(0)
    assert of_tensors(part, ()) == ()
    assert of_tensors(part, ["none"]) == ()
    assert of_tensors(part, ["b", "c"]) == (2, 9)
    assert of_tensors(part, ["a", "c"]) == (0, 2, 5, 9)
    assert of_tensors(part, ["a", "b", "none", "c"]) == EVERYTHING
