"""A streamed set gives the same batches as one in memory, reads each unit once an epoch, and keeps to its bound."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.data.streams.read_ahead import READERS, ReadAhead
from dbelief.data.streams.streamed import StreamedSplit, read_all
from dbelief.data.streams.unit_order import Units
from dbelief.data.streams.unit_source import bytes_per_sample
from dbelief.errors import DataError, StorageError, Unavailable
from tests.dbelief.data.streams.source import Counted

MIB = 1 << 20


def gathered(samples: StreamedSplit, places: list[int], size: int) -> list[np.ndarray]:
    """Inputs of consecutive batches between these places of epoch 0, seed 5."""
    order, buffer, found = samples.order(5, 0), samples.buffer(size), []
    for start, stop in pairwise(places):
        buffer.expect(order, start, stop)
        for first in range(start, stop, size):
            batch = samples.gather(order[first : min(first + size, stop)], buffer)
            assert np.array_equal(batch.targets, batch.inputs[:, 0].astype(np.int64) % 3)
            found.append(batch.inputs.copy())
    return found


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple),
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 400),
    st.data(),
)
def test_batches_are_those_of_the_set_in_memory(
    sizes: tuple[int, ...], window: int, size: int, memory: int, data: st.DataObject
) -> None:
    source, units = Counted(*sizes), Units(sizes, window)
    least = sum(sorted(sizes)[-window:]) * bytes_per_sample(source)
    streamed = StreamedSplit(source, units, max(memory, least))
    cuts = data.draw(st.lists(st.integers(0, sum(sizes)), max_size=3))
    places = sorted({0, sum(sizes), *cuts})
    held = read_all(source, units, 1.0)
    order = held.order(5, 0)
    expected = [
        held.inputs[order[first : min(first + size, stop)]]
        for start, stop in pairwise(places)
        for first in range(start, stop, size)
    ]
    found = gathered(streamed, places, size)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


def test_each_unit_is_read_once_an_epoch_in_order_and_none_that_is_not_leased() -> None:
    source, units = Counted(4, 4, 4, 4), Units((4, 4, 4, 4))
    streamed = StreamedSplit(source, units, MIB)
    gathered(streamed, [0, 8], 3)
    assert sorted(source.reads) == sorted(unit for window in units.order(5, 0).windows(0, 8) for unit in window)


def test_the_whole_set_is_read_where_it_is_asked_for() -> None:
    streamed = StreamedSplit(Counted(2, 3), Units((2, 3)), MIB, 0.5)
    assert streamed.inputs[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert streamed.targets.tolist() == [0, 1, 2, 0, 1]
    assert streamed.class_counts(3).tolist() == [2, 2, 1]
    head = streamed.head(3)
    assert head.inputs[:, 0].tolist() == [0, 1, 2]
    assert head.scale == 0.5
    assert (len(streamed), streamed.features, streamed.whole, streamed.width) == (5, (2,), False, None)


def test_a_window_that_outgrows_the_memory_is_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"unit 1, the largest of data.window: 2 together, needs 1 MiB of memory, more than data.memory, 0",
    ):
        StreamedSplit(Counted(4, 9, 2), Units((4, 9, 2), 2), 13 * 16 - 1)
    StreamedSplit(Counted(4, 9, 2), Units((4, 9, 2), 2), 13 * 16)


def test_reading_ahead_keeps_to_its_bound() -> None:
    source = Counted(*[10] * 6)
    ahead = ReadAhead(source, 3 * 10 * bytes_per_sample(source))
    ahead.plan([[unit] for unit in range(6)])
    for unit in range(6):
        ahead.get(unit)
        assert len(source.reads) <= unit + 3
    assert sorted(source.reads) == list(range(6))


def test_nothing_is_read_once_no_more_is_expected() -> None:
    source = Counted(*[10] * 20)
    source.gate.clear()
    ahead = ReadAhead(source, MIB)
    ahead.plan([[unit] for unit in range(20)])
    ahead.plan([])
    source.gate.set()
    while ahead._threads:
        pass
    assert len(source.reads) <= READERS


def test_a_store_that_is_away_is_a_failure_of_the_data() -> None:
    source = Counted(5)
    source.read = Mock(side_effect=Unavailable("s3://bucket/part: cannot connect"))  # type: ignore[method-assign]
    ahead = ReadAhead(source, MIB)
    for windows in ([[0]], []):
        ahead.plan(windows)
        with pytest.raises(StorageError, match="s3://bucket/part: cannot connect"):
            ahead.get(0)


def test_a_buffer_is_for_its_own_set() -> None:
    one, other = (StreamedSplit(Counted(3), Units((3,)), MIB) for _ in range(2))
    with pytest.raises(ValueError, match="of another set"):
        one.gather(np.arange(2), other.buffer(2))
    for indices in (np.arange(4), np.array([-1]), np.array([3])):
        with pytest.raises(ValueError, match=r"out of range for 3 samples|m from 1 to 3"):
            one.gather(indices, one.buffer(3))


def test_units_of_a_later_plan_that_are_held_are_not_read_again() -> None:
    source = Counted(5, 5)
    ahead = ReadAhead(source, MIB)
    ahead.plan([[0], [1]])
    ahead.get(0)
    ahead.plan([[0]])
    ahead.get(0)
    assert source.reads.count(0) == 1


def test_a_torn_unit_fails_its_user_alone() -> None:
    source = Counted(5, 5, 5, torn=1)
    ahead = ReadAhead(source, MIB)
    ahead.plan([[0], [1], [2]])
    ahead.get(0)
    with pytest.raises(DataError, match="unit 1 is torn"):
        ahead.get(1)
    assert len(ahead.get(2).targets) == 5
    assert ahead.get(0).targets[0] == 0  # goes back: read again
