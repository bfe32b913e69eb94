from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn.layers.convolution import Conv
from dbelief.nn.layers.local import Local
from dbelief.nn.workspace import Workspace
from tests.dbelief.nn.conftest import CheckLayer
from tests.dbelief.nn.layers.test_sliding_windows import forward
from tests.examples import examples

CPU = select_backend("cpu")
few = st.integers(1, 3)
more = st.integers(0, 2)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Local, np.ndarray]:
    """A layer and images that it takes: windows of 1 to 3 strides, sides that differ."""
    block, stride, wide = draw(few), draw(few | st.none()), draw(few)
    layer = Local(wide * (stride or block), block, draw(few), stride)
    height, width = (layer.step * (wide + draw(more)) for _ in range(2))
    m, channels = draw(few), draw(few)
    return layer, np.random.default_rng(m + height).standard_normal((m, height, width, channels))


def backward(layer: Any, x: np.ndarray, parameters: list[np.ndarray], dy: np.ndarray) -> tuple[Any, ...]:
    dx, gradients = np.full_like(x, np.nan), [np.full_like(p, np.nan) for p in parameters]
    layer.backward(Workspace(CPU), x, np.zeros_like(dy), dy, parameters, gradients, dx)
    return (dx, *gradients)


def drawn(layer: Local, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(x.size)
    weight, bias = (rng.standard_normal(shape) for shape in layer.shapes(x.shape[1:]))
    return weight, bias


def in_pixels(layer: Local, weight: np.ndarray) -> np.ndarray:
    """Weights as the formula has them: (nr, nc, F, window, window, channels)."""
    nr, nc, neurons, g, _, depth = weight.shape
    s = layer.step
    pixels = weight.reshape(nr, nc, neurons, g, g, s, s, depth // s**2).swapaxes(4, 5)
    return pixels.reshape(nr, nc, neurons, layer.window, layer.window, -1)


@examples(40)
@given(cases())
def test_gradient(check_layer: CheckLayer, case: tuple[Local, np.ndarray]) -> None:
    check_layer(*case)


@examples(40)
@given(cases())
def test_against_its_formula_neuron_by_neuron(case: tuple[Local, np.ndarray]) -> None:
    layer, x = case
    weight, bias = drawn(layer, x)
    found, pixels, b = forward(layer, x, (weight, bias)), in_pixels(layer, weight), layer.block
    for i, j, k in np.ndindex(*bias.shape):
        top, left = i * layer.step, j * layer.step
        window = x[:, top : top + layer.window, left : left + layer.window]
        place, f = divmod(k, layer.maps)
        y = found[:, b * i + place // b, b * j + place % b, f]
        np.testing.assert_allclose(y, (window * pixels[i, j, k]).sum((1, 2, 3)) + bias[i, j, k], rtol=0, atol=1e-12)


@examples(40)
@given(cases())
def test_the_same_filters_everywhere_are_a_convolution(case: tuple[Local, np.ndarray]) -> None:
    """Forward, dL/dx, and the sum of all gradients over the places."""
    layer, x = case
    weight, bias = (p[:1, :1] for p in drawn(layer, x))
    blocks = layer.blocks(x.shape[1:])
    tied = [np.ascontiguousarray(np.broadcast_to(p, (blocks.nr, blocks.nc, *p.shape[2:]))) for p in (weight, bias)]
    conv = Conv(blocks.neurons, layer.window, layer.step)
    filters = [np.ascontiguousarray(np.moveaxis(in_pixels(layer, weight)[0, 0], 0, -1)), bias[0, 0]]

    def as_blocks(y: np.ndarray) -> np.ndarray:
        """Images of `layer` with the neurons of a block as channels, in their order."""
        b = layer.block
        cut = y.reshape(len(y), blocks.nr, b, blocks.nc, b, layer.maps).swapaxes(2, 3)
        return np.ascontiguousarray(cut.reshape(len(y), blocks.nr, blocks.nc, -1))

    expected = np.empty((len(x), *conv.outputs(x.shape[1:])))
    conv.forward(Workspace(CPU), x, filters, expected)
    found = forward(layer, x, tied)
    np.testing.assert_allclose(as_blocks(found), expected, rtol=0, atol=1e-12)

    dy = np.random.default_rng(1).standard_normal(found.shape)
    dx, d_weight, d_bias = backward(layer, x, tied, dy)
    conv_dx, d_filters, d_shared = backward(conv, x, filters, as_blocks(dy))
    np.testing.assert_allclose(dx, conv_dx, rtol=0, atol=1e-12)
    summed = np.moveaxis(in_pixels(layer, d_weight.sum((0, 1), keepdims=True))[0, 0], 0, -1)
    np.testing.assert_allclose(summed, d_filters, rtol=0, atol=1e-11)
    np.testing.assert_allclose(d_bias.sum((0, 1)), d_shared, rtol=0, atol=1e-11)


@examples(40)
@given(cases(), st.data())
def test_some_blocks_are_a_layer_of_their_own(case: tuple[Local, np.ndarray], data: st.DataObject) -> None:
    """Outputs of a rectangle of blocks need its weights, and of the image what the layer says it sees."""
    layer, x = case
    weight, bias = drawn(layer, x)
    ranges = []
    for n in bias.shape[:2]:
        start = data.draw(st.integers(0, n - 1))
        ranges.append((start, data.draw(st.integers(start + 1, n))))
    own = tuple(slice(*one) for one in ranges)
    rows, columns = (layer.sees(layer.block * start, layer.block * stop) for start, stop in ranges)
    assert rows is not None
    assert columns is not None
    seen = np.ascontiguousarray(x[:, slice(*rows), slice(*columns)])
    part = forward(layer, seen, (np.ascontiguousarray(weight[own]), np.ascontiguousarray(bias[own])))
    (top, bottom), (left, right) = ranges
    b = layer.block
    whole = forward(layer, x, (weight, bias))[:, b * top : b * bottom, b * left : b * right]
    np.testing.assert_allclose(part, whole, rtol=0, atol=1e-12)


def test_receptive_range_of_outputs() -> None:
    layer = Local(20, 4, 8)  # the first layer of Coates et al.: on two ranks they are 8 pixels apart from the middle
    assert layer.outputs((200, 200, 3)) == (184, 184, 8)
    assert layer.sees(0, 92) == (0, 108)
    assert layer.sees(92, 184) == (92, 200)
    assert layer.sees(5, 6) == layer.sees(4, 8) == (4, 24)
    assert Local(6, 1, 1, 2).sees(3, 5) == (6, 14)


def test_it_keeps_its_kernels() -> None:
    layer, work = Local(4, 2, 1), Workspace(CPU)
    blocks, kind = layer.blocks((8, 8, 1)), np.dtype(np.float32)
    assert work.kernels(blocks, 5, kind) is work.kernels(blocks, 5, kind)
    assert work.kernels(blocks, 4, kind) is not work.kernels(blocks, 5, kind)


@pytest.mark.parametrize(("before_relu", "limit"), [(True, (6 / 192) ** 0.5), (False, (6 / 492) ** 0.5)])
def test_initial_values(before_relu: bool, limit: float) -> None:
    """A neuron sees 8 x 8 pixels of 3 numbers; a pixel is seen by 2 x 2 blocks of 5 x 5 x 3 neurons."""
    layer = Local(8, 5, 3, 4)
    assert layer.shapes((24, 20, 3)) == ((5, 4, 75, 2, 2, 48), (5, 4, 75))
    assert layer.limit((24, 20, 3), before_relu) == pytest.approx(limit)


@pytest.mark.parametrize("name", ["window", "block", "maps", "stride"])
def test_counts_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, must be 1 or more"):
        Local(**{"window": 2, "block": 1, "maps": 1, "stride": 1, name: 0})


@pytest.mark.parametrize(
    ("layer", "image", "said"),
    [
        (Local(4, 2, 1), (8, 7, 1), "has a stride of 2 pixels, but gets images of 8 x 7, not multiples of it"),
        (Local(4, 2, 1, 1), (3, 9, 1), "has windows of 4 x 4 pixels, but gets images of 3 x 9"),
        (Local(4, 2, 1), (64,), "takes images, but gets 64 numbers per sample; a layer"),
    ],
)
def test_images_that_do_not_fit(layer: Local, image: tuple[int, ...], said: str) -> None:
    with pytest.raises(ModelError, match=f"^{said}"):
        layer.outputs(image)
