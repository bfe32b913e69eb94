"""Whole numbers in parts: each survives, and so do sums and averages of what replicas add at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.whole_numbers import change, join, split, type_in_parts, whole_type
from tests.examples import examples

TYPES = ("int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", TYPES)
def test_each_number_survives(dtype: str) -> None:
    limits = np.iinfo(dtype)
    ends = [limits.min, limits.min + 1, 0, 1, 2**16 - 1, 2**16, 2**24 + 1, limits.max - 1, limits.max]
    drawn = np.random.default_rng(0).integers(limits.min, limits.max, 200, dtype=dtype, endpoint=True)
    for values in (np.array(ends, dtype), drawn.reshape(4, 5, 10), np.array(limits.max, dtype), drawn[:0]):
        parts = split(values)
        assert parts.shape[:-1] == values.shape
        assert parts.dtype == np.float32
        back = join(parts, values.dtype)
        assert back.dtype == values.dtype
        np.testing.assert_array_equal(back, values)


@examples(200)
@given(
    first=st.integers(-(2**50), 2**50),
    steps=st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=200),
    rounds=st.integers(1, 3),
    start=st.sampled_from([0, 2**22 + 5, -(2**23)]),
)
def test_replicas_that_add_at_once(first: int, steps: list[int], rounds: int, start: int) -> None:
    """Each adds the difference from what all of them have fetched, as float32; some parts are full already."""
    held, wanted = split(np.array(first)), first
    held[:2] += np.array([start, -start], np.float32)
    wanted += start - (start << 16)
    for _ in range(rounds):
        fetched = held.copy()
        seen = join(fetched, np.dtype(np.int64))
        for step in steps:
            held += change(fetched, seen + step)
        wanted += sum(steps)
        assert join(held, np.dtype(np.int64)) == wanted


@pytest.mark.parametrize("replicas", [1, 2, 190])
def test_parts_stay_exact_however_long_replicas_count(replicas: int) -> None:
    """All push at once, the most that a push adds to a part, and the lowest part is full again and again."""
    held, step, pushes = split(np.array(0)), 65_535, 0
    for _ in range(-(-6_000 // replicas)):
        fetched = held.copy()
        seen = join(fetched, np.dtype(np.int64))
        for _ in range(replicas):
            held += change(fetched, seen + step)
            assert np.abs(held).max() < 2**24
        pushes += replicas
    assert join(held, np.dtype(np.int64)) == pushes * step


@pytest.mark.parametrize("dtype", TYPES)
def test_a_change_leads_from_any_number_to_any_other(dtype: str) -> None:
    limits = np.iinfo(dtype)
    ends = np.array([limits.min, limits.max, 0, 1, limits.max // 2], dtype)
    before, after = (axis.reshape(-1) for axis in np.meshgrid(ends, ends))
    held = split(before)
    held += change(held, after)
    np.testing.assert_array_equal(join(held, after.dtype), after)


def test_an_average_is_rounded_to_the_nearest() -> None:
    """Of two replicas one has crossed the end of a part."""
    held = split(np.array([65_535, 7, -3]))
    for weight, value in ((0.25, 65_536), (0.75, 65_537)):
        held += np.float32(weight) * change(split(np.array([65_535, 7, -3])), np.array([value, 8, -1]))
    np.testing.assert_array_equal(join(held, np.dtype(np.int64)), [65_537, 8, -1])


def test_types_that_float32_has_are_as_they_are() -> None:
    for dtype in ("uint8", "int16", "uint16", "bool", "float32", "bfloat16"):
        assert type_in_parts(dtype) == dtype
        assert whole_type(dtype) is None
    for dtype in TYPES:
        assert whole_type(type_in_parts(dtype)) == np.dtype(dtype)
