from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.nn.layers.pooling import AveragePool, L2Pool, MaxPool, Pool
from dbelief.nn.workspace import Workspace
from tests.examples import examples

CheckLayer = Callable[[Any, Any], None]
CPU = select_backend("cpu")
few = st.integers(1, 3)
more = st.integers(0, 5)

NAIVE: dict[type[Pool], Callable[[np.ndarray], float]] = {
    L2Pool: lambda window: float(np.sqrt(1e-8 + (window**2).sum())),
    MaxPool: lambda window: float(window.max()),
    AveragePool: lambda window: float(window.mean()),
}
pools = st.builds(lambda kind, size, stride: kind(size, stride), st.sampled_from(list(NAIVE)), few, few)


def apart(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in random order, any two of them out of the reach of a difference quotient."""
    n = int(np.prod(shape))
    return np.random.default_rng(n).permutation(np.linspace(-2, 2.1, n)).reshape(shape)


def forward(layer: Pool, x: np.ndarray) -> np.ndarray:
    y = np.full((len(x), *layer.outputs(x.shape[1:])), np.nan, x.dtype)
    layer.forward(Workspace(CPU), x, (), y)
    return y


@examples(60)
@given(layer=pools, m=few, channels=few, down=more, across=more)
def test_gradient(check_layer: CheckLayer, layer: Pool, m: int, channels: int, down: int, across: int) -> None:
    check_layer(layer, apart((m, layer.size + down, layer.size + across, channels)))


@examples(60)
@given(layer=pools, m=few, channels=few, down=more, across=more)
def test_against_loops(layer: Pool, m: int, channels: int, down: int, across: int) -> None:
    x = apart((m, layer.size + down, layer.size + across, channels))
    found, size, step = forward(layer, x), layer.size, layer.step
    for place in np.ndindex(found.shape):
        sample, i, j, channel = place
        window = x[sample, i * step : i * step + size, j * step : j * step + size, channel]
        assert found[place] == pytest.approx(NAIVE[type(layer)](window), rel=1e-13, abs=1e-15)


@examples(60)
@given(m=few, size=few, stride=few, padding=few, ceil_mode=st.booleans(), down=more, across=more)
def test_gradient_with_a_border(
    check_layer: CheckLayer, m: int, size: int, stride: int, padding: int, ceil_mode: bool, down: int, across: int
) -> None:
    layer = MaxPool(size, stride, min(padding, size - 1), ceil_mode)
    check_layer(layer, apart((m, size + down, size + across, 2)))


def test_every_window_of_a_pool_sees_a_pixel() -> None:
    assert MaxPool(3, 2, ceil_mode=True).outputs((54, 13, 1)) == (27, 6, 1)
    assert MaxPool(1, 4, ceil_mode=True).outputs((5, 4, 1)) == (2, 1, 1)
    with pytest.raises(ValueError, match="padding is 2, must be less than size, 2"):
        MaxPool(2, padding=2)


def test_l2_has_no_slope_where_all_is_zero() -> None:
    x, dx = np.zeros((1, 3, 3, 1), np.float32), np.full((1, 3, 3, 1), np.nan, np.float32)
    layer = L2Pool(2)
    layer.backward(Workspace(CPU), x, forward(layer, x), np.ones((1, 2, 2, 1), np.float32), (), (), dx)
    assert not dx.any()


def test_l2_requires_an_eps() -> None:
    with pytest.raises(ValueError, match=r"eps is 0\.0, must be above 0"):
        L2Pool(2, eps=0.0)
