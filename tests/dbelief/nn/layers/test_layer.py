import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.nn.initial_values import draw_uniform
from dbelief.nn.layers.layer import Dense, Layer, ReLU, Sigmoid, Tanh
from dbelief.nn.workspace import Workspace
from tests.dbelief.nn.conftest import CheckLayer
from tests.examples import examples

sizes = st.integers(1, 9)
WORK = Workspace(select_backend("cpu"))


def away_from_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers beyond the reach of a difference quotient across the kink of ReLU."""
    away: np.ndarray = rng.uniform(0.1, 2.0, shape) * rng.choice([-1.0, 1.0], shape)
    return away


@examples(30)
@given(m=sizes, inputs=sizes, units=sizes)
def test_dense_gradient(check_layer: CheckLayer, m: int, inputs: int, units: int) -> None:
    check_layer(Dense(units), away_from_zero(np.random.default_rng(m * 100 + inputs), (m, inputs)))


@examples(15)
@given(layer=st.sampled_from([ReLU(), Sigmoid(), Tanh()]), m=sizes, inputs=sizes)
def test_pointwise_gradient(check_layer: CheckLayer, layer: Layer, m: int, inputs: int) -> None:
    check_layer(layer, away_from_zero(np.random.default_rng(m * 100 + inputs), (m, inputs)))


def test_dense_flattens_whatever_comes() -> None:
    rng = np.random.default_rng(0)
    images, layer = rng.standard_normal((3, 2, 4, 5)), Dense(6)
    flat = images.reshape(3, 40)
    parameters = [rng.standard_normal((40, 6)), rng.standard_normal(6)]
    dy, found = rng.standard_normal((3, 6)), []
    for x in (images, flat):
        y, dx, gradients = np.empty((3, 6)), np.empty_like(x), [np.empty_like(p) for p in parameters]
        layer.forward(WORK, x, parameters, y)
        layer.backward(WORK, x, y, dy, parameters, gradients, dx)
        found.append([y, dx.reshape(3, 40), *gradients])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert layer.shapes((2, 4, 5)) == ((40, 6), (6,))


def test_receptive_range_of_outputs() -> None:
    assert Dense(3).sees(1, 2) is None
    assert [layer.sees(3, 7) for layer in (ReLU(), Sigmoid(), Tanh())] == [(3, 7)] * 3


def forward(layer: Layer, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    layer.forward(WORK, x, (), y)
    return y


@pytest.mark.parametrize("layer", [ReLU(), Sigmoid(), Tanh()])
def test_pointwise_layers_overflow_nowhere(layer: Layer) -> None:
    x = np.array([[-3e38, -1e4, 0, 1e4, 3e38]], np.float32)
    y, dx = forward(layer, x), np.empty_like(x)
    layer.backward(WORK, x, y, np.ones_like(x), (), (), dx)
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()


def test_relu_has_no_slope_at_zero() -> None:
    x, dx = np.array([[-0.0, 0.0]]), np.full((1, 2), np.nan)
    layer = ReLU()
    layer.backward(WORK, x, forward(layer, x), np.ones((1, 2)), (), (), dx)
    assert not dx.any()


@pytest.mark.parametrize(("before_relu", "limit"), [(True, (6 / 300) ** 0.5), (False, (6 / 500) ** 0.5)])
def test_initial_values_of_dense(before_relu: bool, limit: float) -> None:
    drawn = np.empty(Dense(200).shapes((300,))[0], np.float32)
    weight = draw_uniform(np.random.default_rng(0), Dense(200).limit((300,), before_relu), drawn)
    assert weight.shape == (300, 200)
    assert 0.999 * limit < abs(weight).max() <= limit * (1 + 1e-6)
    # Of a uniform distribution: mean 0, variance limit^2 / 3; 60,000 draws, five standard errors.
    assert abs(weight.mean()) < 5 * limit / (3 * 60_000) ** 0.5
    assert weight.var() == pytest.approx(limit**2 / 3, rel=0.02)


def test_dense_needs_a_unit() -> None:
    with pytest.raises(ValueError, match="units is 0"):
        Dense(0)
