"""Distinct keys of a mini-batch, and their order, against NumPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.sparse.ordered_keys import ordered_keys
from dbelief.sparse.row_hash import buckets, hashes
from dbelief.sparse.table import IN_ORDER, SparseTable, unpack

KEYS = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
COUNTS = st.sampled_from([1, 2, 7, 4096])


def table(count: int) -> SparseTable:
    return SparseTable("user", 3, 11, 0.5, 0.1, 4, count)


@given(st.lists(KEYS, max_size=40), COUNTS)
def test_keys_are_distinct_and_every_given_one_has_its_place(given_keys: list[int], count: int) -> None:
    own, wanted = table(count), np.array(given_keys, np.int64)
    keys, places = ordered_keys(wanted, own)
    np.testing.assert_array_equal(np.sort(keys), np.unique(wanted))
    np.testing.assert_array_equal(keys[places], wanted)
    assert own.runs(keys)[0] is IN_ORDER


@given(st.sets(KEYS, max_size=40), COUNTS, st.randoms(use_true_random=False))
def test_split_and_pack_are_the_same_in_any_order(chosen: set[int], count: int, random: object) -> None:
    own = table(count)
    mixed = np.array(random.sample(sorted(chosen), len(chosen)), np.int64)  # type: ignore[attr-defined]
    order, parts = own.split(mixed)
    ordered = mixed[order]
    numbers = buckets(hashes(ordered, own.salt), count).astype(np.int64)
    np.testing.assert_array_equal(ordered, mixed[np.lexsort((mixed, buckets(hashes(mixed, own.salt), count)))])
    assert [index for index, _ in parts] == [own.first + number for number in np.unique(numbers)]
    for index, where in parts:
        assert (numbers[where] == index - own.first).all()
    rows = np.random.default_rng(0).standard_normal((mixed.size, own.width), np.float32)
    packed, again = own.pack(mixed, rows), own.pack(ordered, rows[order])
    assert packed.keys() == again.keys() == {index for index, _ in parts}
    for index, where in parts:
        keys, held = unpack(packed[index], own.width)
        np.testing.assert_array_equal(keys, ordered[where])
        np.testing.assert_array_equal(held, rows[order][where])
        np.testing.assert_array_equal(again[index].view(np.uint32), packed[index].view(np.uint32))


def test_keys_in_order_of_value_alone_are_sorted_by_bucket() -> None:
    own, keys = table(7), np.arange(50)
    assert own.runs(keys)[0] is not IN_ORDER
    assert own.runs(np.repeat(keys[:1], 2))[0] is not IN_ORDER  # a key that is there twice
