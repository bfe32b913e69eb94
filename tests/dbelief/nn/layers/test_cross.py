"""Cross layers: the formula, layer by layer, and differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Cross, build_network
from dbelief.nn.workspace import Workspace
from dbelief.partition import Grid, layout_of
from tests.dbelief.nn.conftest import CheckLayer

CPU = select_backend("cpu")


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5))
def test_each_layer_crosses_with_the_inputs(check_layer: CheckLayer, layers: int, m: int, d: int) -> None:
    rng, layer = np.random.default_rng(d), Cross(layers)
    x, weight, bias = rng.standard_normal((m, d)), rng.standard_normal((layers, d)), rng.standard_normal((layers, d))
    y, expected = np.empty_like(x), x
    layer.forward(Workspace(CPU), x, (weight, bias), y)
    for w, b in zip(weight, bias, strict=True):
        expected = np.einsum("mi,mj,j->mi", x, expected, w) + b + expected
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)
    check_layer(layer, x)


def test_it_is_not_cut_over_ranks() -> None:
    model = build_network(
        [("cross", {"layers": 2}), ("dense", {"units": 4})], "softmax_cross_entropy", features=8, outputs=4, backend=CPU
    )
    with pytest.raises(ModelError, match="layer cross1: cannot be cut over ranks"):
        layout_of(model, Grid(1, 2))
