"""The order of units is a permutation of all samples, and each part of it is that of the whole."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.data.streams.unit_order import Units

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(tuple)


@given(SIZES, st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_has_each_sample_once_and_windows_have_whole_units(
    sizes: tuple[int, ...], window: int, seed: int, epoch: int
) -> None:
    units = Units(sizes, window)
    order = units.order(seed, epoch)
    whole = order[0 : sum(units.sizes)]
    assert sorted(whole) == list(range(sum(units.sizes)))
    assert order.ends[-1] == sum(units.sizes)
    firsts, start = units.firsts(), 0
    for end, (held,) in zip(order.ends, [order.windows(end - 1, end) for end in order.ends], strict=True):
        expected = [index for unit in held for index in range(firsts[unit], firsts[unit + 1])]
        assert sorted(order[start:end]) == sorted(expected)
        assert len(held) <= window
        start = end


@given(SIZES, st.integers(1, 3), st.data())
def test_a_part_is_that_of_the_whole(sizes: tuple[int, ...], window: int, data: st.DataObject) -> None:
    units = Units(sizes, window)
    start = data.draw(st.integers(0, sum(units.sizes)))
    stop = data.draw(st.integers(start, sum(units.sizes)))
    whole = units.order(1, 2)[0 : sum(units.sizes)]
    assert np.array_equal(units.order(1, 2)[start:stop], whole[start:stop])
    read = {unit for window in units.order(1, 2).windows(start, stop) for unit in window}
    needed = np.searchsorted(units.firsts(), whole[start:stop], "right") - 1
    assert {*needed.tolist()} <= read


def test_epochs_and_seeds_have_other_orders() -> None:
    units = Units((50, 50, 50))
    orders = [tuple(units.order(seed, epoch)[0:150]) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({*orders}) == 3
    assert units.order(0, 0)[0:150].tolist() == list(orders[0])


def test_the_order_of_the_source_is_by_unit() -> None:
    order = Units((3, 2, 4), window=2).source_order()
    assert order[2:7].tolist() == [2, 3, 4, 5, 6]
    assert order.windows(2, 7) == [[0], [1], [2]]
