"""Sparse sets: mini-batches are the rows of the same set in an array, sparse or dense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import Backend, select_backend
from dbelief.data import Dataset, SparseSplit, Split
from dbelief.data import sparse as module
from dbelief.errors import DataError
from dbelief.nn import Model, SparseRows
from tests.dbelief.nn.kernels.test_sparse import rows_of
from tests.examples import examples

CPU = select_backend("cpu")
N, FEATURES = 40, 12
RNG = np.random.default_rng(0)
X = (RNG.standard_normal((N, FEATURES)) * (RNG.random((N, FEATURES)) < 0.3)).astype(np.float32)
X[7] = 0
LABELS = RNG.integers(0, 3, N)
MINE = np.sort(RNG.permutation(N)[:30])


def split(rows: np.ndarray = MINE) -> SparseSplit:
    """Some rows of a source that other sets share."""
    return SparseSplit(rows_of(X), rows, LABELS[rows])


@examples(100)
@given(st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=9), min_size=1, max_size=4), st.booleans())
def test_batches_are_rows_of_the_set(batches: list[list[int]], dense: bool) -> None:
    """In any order, with repetitions, longer and shorter ones in one buffer."""
    found = split().dense() if dense else split()
    buffer = found.buffer(9)
    for indices in batches:
        batch = found.gather(np.array(indices), buffer)
        assert isinstance(batch.inputs, np.ndarray if dense else SparseRows)
        assert len(batch) == len(indices)
        assert (batch.inputs.shape, batch.inputs.dtype) == ((len(indices), FEATURES), np.float32)
        rows = batch.inputs.dense() if isinstance(batch.inputs, SparseRows) else batch.inputs
        np.testing.assert_array_equal(rows, X[MINE][indices])
        np.testing.assert_array_equal(batch.targets, LABELS[MINE][indices])


def test_a_set_tells_of_itself_what_the_array_does() -> None:
    found, other = split(), Split(X[MINE], LABELS[MINE])
    np.testing.assert_array_equal(found.inputs.dense(), X[MINE])
    np.testing.assert_array_equal(found.dense().inputs, X[MINE])
    assert (len(found), found.features, found.whole, found.width) == (30, (FEATURES,), False, None)
    np.testing.assert_array_equal(found.class_counts(3), other.class_counts(3))
    np.testing.assert_array_equal(found.order(3, 1), other.order(3, 1))
    for n in (1, 5, 100):
        np.testing.assert_array_equal(found.largest(n), other.largest(n))
        np.testing.assert_array_equal(found.head(n).inputs.dense(), X[MINE][:n])
        np.testing.assert_array_equal(found.dense().head(n).inputs, X[MINE][:n])
    data = Dataset(found, None, found, 3, (FEATURES,))
    assert isinstance(data.dense().train, SparseSplit)
    assert data.dense().validation is None
    np.testing.assert_array_equal(data.dense().train.inputs, X[MINE])  # type: ignore[union-attr]


def test_memory_is_counted_by_the_numbers_of_a_set() -> None:
    counts, rest = (X != 0).sum(axis=1), np.setdiff1d(np.arange(N), MINE)
    assert split().nbytes == 8 * counts[MINE].sum() + 24 * 30
    assert split().nbytes + split(rest).nbytes == 8 * counts.sum() + 24 * N
    most = np.sort(counts[MINE])[-4:].sum()
    assert split().batch_bytes(4) == 8 * most + 8 * 5
    assert split().dense().batch_bytes(4) == 4 * 4 * FEATURES == Split(X, LABELS).batch_bytes(4)


def test_dense_rows_that_would_be_large_are_refused_or_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = SparseSplit.of(rows_of(np.eye(3, 5)), np.arange(3))
    wide = SparseSplit(replace(wide.stored, features=1 << 30), wide.rows, wide.targets)
    wide.buffer(3)
    with pytest.raises(DataError, match=r"^a mini-batch of 3 samples of 1,073,741,824 features is 12.0 GiB as dense"):
        wide.dense().buffer(3)
    many = SparseSplit(wide.stored, np.arange(3).repeat(2), np.zeros(6, np.int64))
    with pytest.raises(DataError, match=r"^6 rows of 1073741824 features are 24 GiB as dense rows$"):
        _ = many.dense().inputs
    assert (wide.at_once(1000), wide.dense().at_once(1000)) == (3, 1)
    assert (split().at_once(7), split().dense().at_once(7)) == (7, 7)
    monkeypatch.setattr(module, "_DENSE_BLOCK", 4 * FEATURES * 5)
    assert split().dense().at_once(7) == 5


def test_what_models_read_decides_the_batches() -> None:
    class Reads:
        reads_sparse = True

    def dense(model: Any, where: Backend = CPU) -> bool:
        found = split().read_by(model, where)
        assert isinstance(found, SparseSplit)
        return found.gives_dense

    assert not dense(Reads())
    assert dense(Reads(), Backend("cupy", np))
    assert dense(object())
    Reads.reads_sparse = False
    assert dense(Reads())
    other, model = Split(X, LABELS), cast("Model", object())
    assert other.read_by(model, CPU) is other


@pytest.mark.parametrize("dense", [False, True])
def test_wrong_indices_and_buffers_are_refused(dense: bool) -> None:
    found = split().dense() if dense else split()
    buffer = found.buffer(4)
    for indices, words in (
        (np.arange(5), r"must be int64 of shape \(m,\), m from 1 to 4"),
        (np.arange(0), r"must be int64 of shape \(m,\), m from 1 to 4"),
        (np.arange(2, dtype=np.int32), "must be int64"),
        (np.array([0, 30]), "index 30 is out of range for 30 samples"),
        (np.array([-1]), "index -1 is out of range for 30 samples"),
    ):
        with pytest.raises(ValueError, match=words):
            found.gather(indices, buffer)
    other = SparseSplit.of(rows_of(np.eye(3, 5)), np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="the buffer holds features and targets"):
        (other.dense() if dense else other).gather(np.arange(2), buffer)
    with pytest.raises(ValueError, match="size is 0"):
        found.buffer(0)
    with pytest.raises(ValueError, match="3 rows, but 2 targets"):
        SparseSplit.of(rows_of(np.eye(3, 5)), np.arange(2))
    with pytest.raises(ValueError, match="must be int64, int32, float32, int64"):
        SparseSplit(rows_of(X), MINE.astype(np.int32), LABELS[MINE])
