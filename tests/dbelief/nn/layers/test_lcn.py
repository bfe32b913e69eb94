import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.nn.layers.lcn import Lcn
from tests.dbelief.nn.conftest import CheckLayer
from tests.dbelief.nn.layers.test_sliding_windows import forward
from tests.examples import examples

few = st.integers(1, 3)
more = st.integers(0, 4)


def naive(layer: Lcn, h: np.ndarray) -> np.ndarray:
    """The formulas of the file's head, pixel by pixel."""
    b = layer.size // 2
    v = np.arange(-b, b + 1)
    weights = np.exp(-(v[:, None] ** 2 + v**2) / (2 * layer.sigma**2))[None, :, :, None]
    weights = weights / (weights.sum() * h.shape[3])

    def blurred(x: np.ndarray) -> np.ndarray:
        places = np.ndindex(x.shape[1] - 2 * b, x.shape[2] - 2 * b)
        sums = [(weights * x[:, i : i + layer.size, j : j + layer.size]).sum((1, 2, 3)) for i, j in places]
        return np.stack(sums, axis=1).reshape(len(x), x.shape[1] - 2 * b, x.shape[2] - 2 * b, 1)

    g = h[:, b : -b or None, b : -b or None] - blurred(h)
    return np.asarray(g[:, b : -b or None, b : -b or None] / np.maximum(layer.c0, np.sqrt(blurred(g**2))))


def patchy(m: int, height: int, width: int, channels: int) -> np.ndarray:
    """Noise whose left half is so faint that c0 is above its contrast."""
    x = np.random.default_rng(m * 100 + width).standard_normal((m, height, width, channels))
    x[:, :, : width // 2] *= 1e-4
    return x


@examples(40)
@given(
    m=few, size=st.sampled_from([1, 3, 5]), channels=few, down=more, across=more, c0=st.sampled_from([1e-3, 0.01, 9])
)
def test_gradient(check_layer: CheckLayer, m: int, size: int, channels: int, down: int, across: int, c0: float) -> None:
    if size * channels > 1:  # one pixel of one map has no contrast: both are 0, at a kink
        check_layer(Lcn(size, c0=c0), patchy(m, 2 * size - 1 + down, 2 * size - 1 + across, channels))


@examples(20)
@given(m=few, size=st.sampled_from([1, 3, 5]), channels=few, down=more, across=more)
def test_against_loops(m: int, size: int, channels: int, down: int, across: int) -> None:
    layer, x = Lcn(size), patchy(m, 2 * size - 1 + down, 2 * size - 1 + across, channels)
    np.testing.assert_allclose(forward(layer, x, ()), naive(layer, x), rtol=1e-11, atol=1e-13)


def test_it_takes_four_pixels_of_each_border() -> None:
    assert Lcn().outputs((20, 30, 8)) == (12, 22, 8)
    assert Lcn().sees(0, 1) == (0, 9)
