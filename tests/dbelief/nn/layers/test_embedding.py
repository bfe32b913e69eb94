"""The embedding: rows of a table, and the sum of what comes back for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Batch, build_network
from dbelief.nn.layers.embedding import Embedding
from dbelief.nn.workspace import Workspace
from dbelief.partition import Grid, layout_of
from tests.dbelief.nn.conftest import Check
from tests.jobs import small_job

CPU = select_backend("cpu")


def network(layers: list[Any], features: int, seed: int = 0) -> Any:
    return build_network(layers, "softmax_cross_entropy", features=features, outputs=4, backend=CPU, seed=seed)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 9), st.integers(1, 7), st.integers(0, 99))
def test_it_is_the_product_with_the_numbers_as_unit_vectors(
    m: int, n: int, entries: int, width: int, seed: int
) -> None:
    """In float64: y = one_hot(x) W, and dL/dW = one_hot(x)^T dy; nothing of the gradient before remains."""
    rng = np.random.default_rng(seed)
    layer, work = Embedding(entries, width), Workspace(CPU)
    x, table = rng.integers(0, entries, (m, n)), rng.standard_normal((entries, width), np.float32)
    dy = rng.standard_normal((m, *layer.outputs((n,))), np.float32)
    y, gradient = np.full_like(dy, np.nan), np.full_like(table, np.nan)
    layer.forward(work, x, (table,), y)
    layer.backward(work, x, y, dy, (table,), (gradient,), None)
    unit = np.eye(entries)[x]
    np.testing.assert_array_equal(y, (unit @ table).reshape(m, -1).astype(np.float32))
    expected = np.einsum("mne,mnw->ew", unit, dy.reshape(m, n, width).astype(np.float64))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_a_network_has_the_gradient_of_its_loss(check_gradient: Check) -> None:
    """Against differences of the loss in float64."""
    model = network([("embedding", {"entries": 5, "width": 3}), ("tanh", {}), ("dense", {"units": 4})], 2)
    rng = np.random.default_rng(1)
    views = {name: values.astype(np.float64) for name, values in model.parameters(rng).items()}
    out, other = ({name: np.full_like(values, np.nan) for name, values in views.items()} for _ in range(2))
    batch = Batch(rng.integers(0, 5, (6, 2)), rng.integers(0, 4, 6))
    model.loss_and_gradient(views, batch, out)
    gradients = [out[name] for name in views]
    check_gradient(lambda: model.loss_and_gradient(views, batch, other), list(views.values()), gradients)


def test_initial_values_have_variance_one() -> None:
    model = network([("embedding", {"entries": 500, "width": 20}), ("dense", {"units": 4})], 2)
    table = model.parameters(np.random.default_rng(0))["embedding1.weight"]
    assert table.shape == (500, 20)
    assert np.var(table) == pytest.approx(1.0, abs=0.05)


def test_dropout_depends_on_all_bits_of_the_numbers() -> None:
    model = network(
        [("embedding", {"entries": 2, "width": 8}), ("dropout", {"share": 0.5}), ("dense", {"units": 4})], 1
    )
    views = model.parameters(np.random.default_rng(0))
    found = []
    for inputs in ([[0], [1]], [[1], [0]], [[0], [1]]):
        out = {name: np.empty_like(values) for name, values in views.items()}
        model.loss_and_gradient(views, Batch(np.array(inputs), np.array([0, 1])), out)
        found.append(out["dense1.weight"])
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0] != found[1]).any()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.array([[0, 5]]), "the inputs hold 5, and its entries are 0 to 4"),
        (np.array([[-1, 2]]), "the inputs hold -1, and its entries are 0 to 4"),
        (np.zeros((1, 2), np.float32), r"layer embedding1: got inputs of float32, expected whole numbers \(int64\)"),
        (np.zeros((1, 3), np.int64), "got 3 features per sample, expected 2"),
    ],
)
def test_wrong_inputs_are_refused(inputs: np.ndarray, message: str) -> None:
    model = network([("embedding", {"entries": 5, "width": 3}), ("dense", {"units": 4})], 2)
    views = model.parameters(np.random.default_rng(0))
    with pytest.raises(ModelError, match=message):
        model.last_layer(views, Batch(inputs, np.zeros(1, np.int64)))


def test_whole_numbers_for_another_layer_are_refused() -> None:
    model = network([("dense", {"units": 4})], 2)
    views = model.parameters(np.random.default_rng(0))
    with pytest.raises(
        ModelError, match=r"got inputs of int64, expected float32 .*; whole numbers are for an embedding"
    ):
        model.last_layer(views, Batch(np.zeros((1, 2), np.int64), np.zeros(1, np.int64)))


def test_where_it_cannot_be_is_refused() -> None:
    table = ("embedding", {"entries": 5, "width": 3})
    with pytest.raises(ModelError, match="layer embedding1: takes the inputs, so it must be the first layer"):
        network([("dense", {"units": 2}), table, ("dense", {"units": 4})], 2)
    with pytest.raises(
        ModelError, match=r"layer embedding1: takes rows of whole numbers, not samples of shape \(3, 3, 1\)"
    ):
        build_network([table], "square", features=(3, 3), outputs=None, backend=CPU)
    with pytest.raises(ModelError, match="layer embedding1: cannot be cut over ranks: an embedding is for one rank"):
        layout_of(network([table, ("dense", {"units": 4})], 2), Grid(1, 2))
    with pytest.raises(ModelError, match="entries is 0"):
        network([("embedding", {"entries": 0, "width": 3})], 2)


def test_a_job_file_has_it(tmp_path: Path) -> None:
    layers = [{"embedding": {"entries": 9, "width": 4}}, {"dense": 2}]
    job = small_job(
        tmp_path,
        model={"layers": layers, "loss": "softmax_cross_entropy"},
        data={"source": "npz", "file": "words.npz"},
    )
    assert job.to_yaml().count("embedding") == 1
