"""The receptive range of outputs is exactly what the layer computes them from."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.nn.layers.convolution import Conv
from dbelief.nn.layers.dropout import Dropout
from dbelief.nn.layers.image import Image
from dbelief.nn.layers.layer import Layer, ReLU
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.layers.pooling import AveragePool, L2Pool, MaxPool
from dbelief.nn.workspace import Workspace

CPU = select_backend("cpu")
LAYERS: list[Layer] = [
    ReLU(), Dropout(0.5), Conv(3, 4), Conv(3, 4, 2), Conv(2, 2, 3),
    MaxPool(3), AveragePool(3, 2), L2Pool(5), Lcn(), Lcn(3),
]  # fmt: skip


def forward(layer: Layer, x: np.ndarray, parameters: Any) -> np.ndarray:
    y = np.full((len(x), *layer.outputs(x.shape[1:])), np.nan, x.dtype)
    layer.forward(Workspace(CPU), x, parameters, y)
    return y


@settings(deadline=None)
@given(layer=st.sampled_from(LAYERS), data=st.data())
def test_the_window_alone_gives_the_outputs(layer: Layer, data: st.DataObject) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 17, 15, 2))
    parameters = [rng.standard_normal(shape) for shape in layer.shapes(x.shape[1:])]
    whole = forward(layer, x, parameters)
    start = data.draw(st.integers(0, whole.shape[1] - 1))
    stop = data.draw(st.integers(start + 1, whole.shape[1]))
    seen = layer.sees(start, stop)
    assert seen is not None
    first, last = seen
    assert 0 <= first < last <= 17
    part = forward(layer, np.ascontiguousarray(x[:, first:last]), parameters)
    if isinstance(layer, Conv):  # its sums are BLAS's, whose order may differ with the shape
        np.testing.assert_allclose(part, whole[:, start:stop], rtol=0, atol=1e-13)
    else:
        np.testing.assert_array_equal(part, whole[:, start:stop])


@pytest.mark.parametrize("layer", LAYERS[2:])
def test_window_is_exactly_the_receptive_field(layer: Layer) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 1, (1, 17, 15, 1))
    parameters = [rng.standard_normal(shape) for shape in layer.shapes(x.shape[1:])]
    plain = forward(layer, x, parameters)[:, 1]
    matters = []
    for row in range(17):
        moved = x.copy()
        moved[:, row] *= 3  # also beyond the largest of a max pool's window
        matters.append(not np.array_equal(forward(layer, moved, parameters)[:, 1], plain))
    assert [row for row, does in enumerate(matters) if does] == list(range(*layer.sees(1, 2) or ()))


def test_a_row_of_numbers_has_no_window() -> None:
    assert Image(2, 3).sees(0, 1) is None
