"""Splits and permutations: what holds for every number of samples, class sizes and seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.data import cut, permutation
from dbelief.errors import DataError
from tests.examples import examples

SEEDS = st.integers(0, 2**63 - 1)


@examples(50)
@given(st.integers(0, 300), SEEDS, st.integers(0, 10**6))
def test_a_permutation_holds_each_sample_once(n: int, seed: int, epoch: int) -> None:
    order = permutation(n, seed, epoch)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(order, permutation(n, seed, epoch))


@examples(50)
@given(SEEDS, st.integers(0, 10**6))
def test_epochs_and_seeds_have_orders_of_their_own(seed: int, epoch: int) -> None:
    order = permutation(100, seed, epoch)
    assert not np.array_equal(order, permutation(100, seed, epoch + 1))
    assert not np.array_equal(order, permutation(100, seed + 1, epoch))


def test_the_order_is_pinned() -> None:
    # A job's leases are ranges of it: were it to change, a resumed run would train on other samples.
    assert permutation(10, 0, 0).tolist() == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]
    assert permutation(10, 0, 1).tolist() == [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]


@examples(50)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.floats(0, 0.45) | st.integers(0, 20),
    st.floats(0, 0.45) | st.integers(0, 20),
    SEEDS,
)
def test_split_is_disjoint_complete_and_stratified(
    counts: list[int], validation: float, test: float, seed: int
) -> None:
    n = sum(counts)
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    sizes = [part if isinstance(part, int) else int(part * n + 0.5) for part in (validation, test)]
    if sum(sizes) > n - len(counts):
        with pytest.raises(DataError, match=r"^here: of \d+ samples, .* leave no sample of each class to train on$"):
            cut(n, labels, validation, test, "here", seed)
        return
    parts = cut(n, labels, validation, test, "here", seed)
    everyone = np.concatenate([parts.train, parts.validation, parts.test])
    assert np.array_equal(np.sort(everyone), np.arange(n))
    assert [len(parts.validation), len(parts.test)] == sizes
    for part, size in ((parts.validation, sizes[0]), (parts.test, sizes[1])):
        assert part.dtype == np.int64
        assert np.all(np.diff(part) > 0)
        found = np.bincount(labels[part], minlength=len(counts))
        share = size * np.asarray(counts) / n
        # At most a sample from its share, unless so small a class had none to give, and others stood in for it.
        if min(counts) * (n - sum(sizes)) >= 3 * n:
            assert np.all(np.abs(found - share) < 1)
    assert np.bincount(labels[parts.train], minlength=len(counts)).min() >= 1
    again = cut(n, labels, validation, test, "here", seed)
    assert all(np.array_equal(a, b) for a, b in zip(vars(parts).values(), vars(again).values(), strict=True))


def test_shares_by_hand() -> None:
    # 10 % of 7, 13 and 10 is 0.7, 1.3 and 1.0: three in all, the third goes to the greatest remainder.
    labels = np.repeat([0, 1, 2], [7, 13, 10])
    parts = cut(30, labels, 0, 0.1, "here")
    assert np.bincount(labels[parts.test]).tolist() == [1, 1, 1]
    assert len(parts.validation) == 0


def test_without_labels_the_cut_is_by_chance() -> None:
    parts = cut(100, None, 10, 0.2, "here", seed=1)
    assert [len(part) for part in vars(parts).values()] == [70, 10, 20]
    assert not np.array_equal(parts.test, cut(100, None, 10, 0.2, "here", seed=2).test)
    with pytest.raises(DataError, match=r"^here: of 3 samples, 2 for validation and 1 for test leave no sample to"):
        cut(3, None, 2, 1, "here")
