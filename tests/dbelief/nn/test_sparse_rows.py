"""Networks on sparse rows: loss, gradient and outputs are those of the same rows in an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Batch, Network, ReadsSparse, SparseRows
from dbelief.nn.layers.dropout import Dropout
from dbelief.nn.layers.layer import Dense, Layer, ReLU, Tanh
from dbelief.nn.losses import SoftmaxCrossEntropy
from tests.dbelief.nn.kernels.test_sparse import rows_of
from tests.examples import examples

CPU = select_backend("cpu")


def network(*layers: Layer, features: int = 20, classes: int = 3, seed: int = 0) -> Network:
    return Network([*layers, Dense(classes)], SoftmaxCrossEntropy(), features, classes, CPU, seed)


def batch_of(m: int, features: int = 20, classes: int = 3) -> tuple[Batch, Batch]:
    """The same batch, sparse and dense."""
    rng = np.random.default_rng(m)
    x = (rng.standard_normal((m, features)) * (rng.random((m, features)) < 0.2)).astype(np.float32)
    targets = rng.integers(0, classes, m)
    return Batch(rows_of(x), targets), Batch(x, targets)


@examples(30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.booleans())
def test_loss_gradient_and_outputs_are_those_of_arrays(sizes: list[int], hidden: bool) -> None:
    layers: list[Layer] = [Dense(7), Tanh()] if hidden else []
    model = network(*layers)
    views = model.parameters(np.random.default_rng(1))
    for m in sizes:
        sparse, dense = batch_of(m)
        mine, other = ({name: np.full_like(value, np.nan) for name, value in views.items()} for _ in range(2))
        loss = model.loss_and_gradient(views, sparse, mine)
        assert loss == pytest.approx(model.loss_and_gradient(views, dense, other), rel=1e-6)
        for name in views:
            np.testing.assert_allclose(mine[name], other[name], rtol=0, atol=2e-7)
        assert model.evaluate(views, sparse) == pytest.approx(model.evaluate(views, dense), rel=1e-6)
        np.testing.assert_allclose(model.last_layer(views, sparse), model.last_layer(views, dense).copy(), atol=1e-6)


def test_which_networks_read_sparse_rows() -> None:
    assert isinstance(network(), ReadsSparse)
    assert network().reads_sparse
    first = network(ReLU())
    assert not first.reads_sparse
    views, (sparse, _) = first.parameters(np.random.default_rng(0)), batch_of(4)
    with pytest.raises(ModelError, match="layer relu1: got sparse rows, which only a first layer dense reads"):
        first.evaluate(views, sparse)
    with pytest.raises(ModelError, match="layer dense1: got 20 features per sample, expected 21"):
        network(features=21).evaluate(network(features=21).parameters(np.random.default_rng(0)), sparse)


def test_masks_depend_on_the_rows_alone() -> None:
    model, (sparse, _) = network(Dense(50), Dropout(0.5), seed=3), batch_of(6)
    views = model.parameters(np.random.default_rng(0))
    out = {name: np.empty_like(value) for name, value in views.items()}
    x = sparse.inputs
    moved = SparseRows(x.indptr, (x.columns + 1) % 20, x.values, 20)
    offset = SparseRows(x.indptr + 2, np.r_[[np.int32(0)] * 2, x.columns], np.r_[x.values[:2], x.values], 20)
    first = model.loss_and_gradient(views, sparse, out)
    assert model.loss_and_gradient(views, Batch(offset, sparse.targets), out) == first
    assert np.array_equal(x.bits, offset.bits)
    assert not np.array_equal(x.bits, moved.bits)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": np.array([0, 1, 5], np.int32)}, "columns are 0 to 5, must be 0 to 4"),
        ({"columns": np.array([-1, 1, 2], np.int32)}, "columns are -1 to 2, must be 0 to 4"),
        ({"indptr": np.array([0, 2, 4])}, "indptr must ascend from 0 or more to at most 3"),
        ({"indptr": np.array([0, 3, 2])}, "indptr must ascend"),
        ({"indptr": np.array([-1, 1, 2])}, "indptr must ascend"),
        ({"values": np.zeros(2, np.float32)}, "indptr must ascend"),
    ],
)
def test_inconsistent_rows_are_refused(change: dict[str, Any], words: str) -> None:
    fields: dict[str, Any] = {
        "indptr": np.array([0, 1, 3]),
        "columns": np.array([0, 1, 2], np.int32),
        "values": np.ones(3, np.float32),
    }
    SparseRows(**fields, features=5).check()
    with pytest.raises(ValueError, match=words):
        SparseRows(**{**fields, **change}, features=5).check()
