import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import correlate

from dbelief.arrays.backend import select_backend
from dbelief.nn.layers import convolution
from dbelief.nn.layers.convolution import Conv
from dbelief.nn.workspace import Workspace
from tests.dbelief.nn.conftest import CheckLayer
from tests.dbelief.nn.layers.test_sliding_windows import forward
from tests.examples import examples

CPU = select_backend("cpu")
few = st.integers(1, 3)
more = st.integers(0, 4)


@examples(40)
@given(m=few, channels=few, kernel=few, stride=few, padding=st.integers(0, 2), down=more, across=more)
def test_gradient(
    check_layer: CheckLayer, m: int, channels: int, kernel: int, stride: int, padding: int, down: int, across: int
) -> None:
    x = np.random.default_rng(m).standard_normal((m, kernel + down, kernel + across, channels))
    check_layer(Conv(2, kernel, stride, padding), x)


@examples(40)
@given(m=few, channels=few, kernel=few, stride=few, padding=st.integers(0, 2), down=more, across=more)
def test_against_scipy(m: int, channels: int, kernel: int, stride: int, padding: int, down: int, across: int) -> None:
    rng = np.random.default_rng(m * 10 + down)
    x = rng.standard_normal((m, kernel + down, kernel + across, channels))
    maps, border = 2, (padding, padding)
    weight, bias = rng.standard_normal((kernel, kernel, channels, maps)), rng.standard_normal(maps)
    found = forward(Conv(maps, kernel, stride, padding), x, (weight, bias))
    for sample in range(m):
        for f in range(maps):
            whole = correlate(np.pad(x[sample], (border, border, (0, 0))), weight[..., f], "valid")[..., 0] + bias[f]
            np.testing.assert_allclose(found[sample, :, :, f], whole[::stride, ::stride], rtol=0, atol=1e-13)


def test_some_samples_at_a_time_give_the_same_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, layer = np.random.default_rng(0), Conv(4, 3)
    x, weight, bias = (rng.standard_normal(shape) for shape in ((7, 6, 5, 2), (3, 3, 2, 4), (4,)))
    dy, found = rng.standard_normal((7, 4, 3, 4)), []
    for limit in (2**20, 3 * 4 * 3 * 18 * 8, 1):  # 7 samples; 3, 3 and 1; one by one
        monkeypatch.setattr(convolution, "HOST_BYTES", limit)
        dx, gradients = np.full_like(x, np.nan), [np.full_like(p, np.nan) for p in (weight, bias)]
        y = forward(layer, x, (weight, bias))
        layer.backward(Workspace(CPU), x, y, dy, (weight, bias), gradients, dx)
        found.append([y, dx, *gradients])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("before_relu", "limit"), [(True, (6 / 200) ** 0.5), (False, (6 / 1450) ** 0.5)])
def test_initial_values(before_relu: bool, limit: float) -> None:
    assert Conv(50, 5).shapes((28, 28, 8)) == ((5, 5, 8, 50), (50,))
    assert Conv(50, 5).limit((28, 28, 8), before_relu) == pytest.approx(limit)


@pytest.mark.parametrize("name", ["maps", "kernel", "stride"])
def test_counts_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, must be 1 or more"):
        Conv(**{"maps": 1, "kernel": 1, "stride": 1, name: 0})


def test_a_border_is_not_negative() -> None:
    with pytest.raises(ValueError, match="padding is -1, must be 0 or more"):
        Conv(1, 1, padding=-1)
