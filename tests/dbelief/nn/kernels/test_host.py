"""The kernels in NumPy against three other ways to the same numbers, and against each other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from scipy.signal import correlate

from dbelief.nn.kernels import Blocks, HostKernels, space_to_depth
from tests.dbelief.nn.kernels.operands import Operands, draw, shapes
from tests.traced import traced

F8 = np.dtype(np.float64)
LAYER = Blocks(rows=7, columns=6, window=3, depth=5, neurons=4)


def run(o: Operands) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """W x, W^T y, y x^T and |W|, written over what is no number."""
    kernels = HostKernels(o.blocks, o.x.shape[-1], o.w.dtype)
    results = tuple(np.full_like(a, np.nan) for a in (o.y, o.x, o.w, o.w[..., 0, 0, 0]))
    wx, wty, yxt, norms = results
    kernels.forward(o.w, o.x, wx)
    kernels.backward_data(o.w, o.y, wty)
    kernels.backward_weight(o.y, o.x, yxt)
    kernels.row_norms(o.w, norms)
    return wx, wty, yxt, norms


def unfold(blocks: Blocks, x: np.ndarray) -> np.ndarray:
    """[nr][nc][K][M]: each block's input, copied out."""
    g = blocks.window
    seen = [x[i : i + g, j : j + g].reshape(-1, x.shape[-1]) for i in range(blocks.nr) for j in range(blocks.nc)]
    return np.reshape(seen, (blocks.nr, blocks.nc, blocks.fan_in, -1))


def fold(blocks: Blocks, parts: np.ndarray, batch: int) -> np.ndarray:
    """The transpose of unfold: each part added to where it came from."""
    g, x = blocks.window, np.zeros(blocks.x_shape(batch))
    for i, j in itertools.product(range(blocks.nr), range(blocks.nc)):
        x[i : i + g, j : j + g] += parts[i, j].reshape(g, g, blocks.depth, batch)
    return x


@given(shapes())
def test_unfolded_and_folded(shape: tuple[Blocks, int]) -> None:
    blocks, batch = shape
    o = draw(blocks, batch)
    w, seen = o.w.reshape(*blocks.norms_shape, blocks.fan_in), unfold(blocks, o.x)
    wx, wty, yxt, norms = run(o)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    close(wx, w @ seen)
    close(wty, fold(blocks, w.swapaxes(-1, -2) @ o.y, batch))
    close(yxt, (o.y @ seen.swapaxes(-1, -2)).reshape(o.w.shape))
    close(norms, np.linalg.norm(w, axis=-1))


def test_weights_that_are_a_window_of_others() -> None:
    o, part = draw(LAYER, batch=11), Blocks(rows=5, columns=4, window=3, depth=5, neurons=4)
    y = np.empty(part.y_shape(11))
    HostKernels(part, 11, F8).forward(o.w[1:4, 2:4], np.ascontiguousarray(o.x[1:6, 2:6]), y)
    np.testing.assert_allclose(y, run(o)[0][1:4, 2:4], rtol=1e-12, atol=1e-12)


def test_a_convolution_where_all_blocks_are_alike() -> None:
    """Fields of 6 x 6 pixels in steps of 2, tied weights: correlation of the images, every second place."""
    s, channels, m = 2, 3, 4
    blocks, rng = Blocks(rows=5, columns=7, window=3, depth=s * s * channels, neurons=2), np.random.default_rng(3)
    images, filters = rng.standard_normal((m, 10, 14, channels)), rng.standard_normal((2, 6, 6, channels))
    y = np.empty(blocks.y_shape(m))
    tied = space_to_depth(filters, s).transpose(3, 0, 1, 2)  # a filter is a small image: [F][g][g][q]
    w = np.ascontiguousarray(np.broadcast_to(tied, blocks.w_shape))
    HostKernels(blocks, m, F8).forward(w, space_to_depth(images, s), y)
    for image, one in itertools.product(range(m), range(2)):
        expected = correlate(images[image], filters[one], mode="valid", method="direct")[::s, ::s, 0]
        np.testing.assert_allclose(y[:, :, one, image], expected, rtol=1e-12, atol=1e-12)


def test_two_gradients_are_one_of_twice_the_batch() -> None:
    o, p = draw(LAYER, 11, seed=1), draw(LAYER, 11, seed=2)
    both = np.empty_like(o.w)
    kernels = HostKernels(LAYER, 11, F8)
    kernels.backward_weight(np.concatenate([o.y, p.y], axis=-1), np.concatenate([o.x, p.x], axis=-1), both)
    np.testing.assert_allclose(both, run(o)[2] + run(p)[2], rtol=1e-12, atol=1e-12)


def test_halves_of_longer_rows() -> None:
    """The x and y of a fused gradient lie side by side with others: every kernel reads and writes them there."""
    o = draw(LAYER, batch=11)
    kernels, expected = HostKernels(LAYER, 11, F8), run(o)
    x, y, w = np.full(LAYER.x_shape(22), np.nan), np.full(LAYER.y_shape(22), np.nan), np.empty_like(o.w)
    left, right = np.s_[..., :11], np.s_[..., 11:]
    x[left], y[left] = o.x, o.y
    kernels.forward(o.w, x[left], y[right])
    kernels.backward_data(o.w, y[left], x[right])
    kernels.backward_weight(y[left], x[left], w)
    for found, wanted in zip((y[right], x[right], w), expected, strict=False):
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(x[left], o.x)
    np.testing.assert_array_equal(y[left], o.y)


def test_nothing_is_allocated_from_the_first_call_on() -> None:
    o = draw(Blocks(rows=20, columns=20, window=3, depth=16, neurons=16), batch=16, dtype="float32")
    kernels, norms = HostKernels(o.blocks, 16, o.w.dtype), np.empty(o.blocks.norms_shape, np.float32)
    calls: list[Callable[[], None]] = [
        lambda: kernels.forward(o.w, o.x, o.y),
        lambda: kernels.backward_data(o.w, o.y, o.x),
        lambda: kernels.backward_weight(o.y, o.x, o.w),
        lambda: kernels.row_norms(o.w, norms),
    ]
    for call in calls:
        assert traced(call).peak < 100_000  # the smallest array here has 332,000 bytes


def test_wrong_arrays_are_refused_by_name() -> None:
    o = draw(LAYER, batch=11)
    kernels = HostKernels(LAYER, 11, F8)
    with pytest.raises(ValueError, match=r"^x is float64 \(7, 6, 5, 10\), must be float64 \(7, 6, 5, 11\)"):
        kernels.forward(o.w, o.x[..., :10], o.y)
    with pytest.raises(ValueError, match=r"^w is float32"):
        kernels.backward_data(o.w.astype(np.float32), o.y, o.x)
    with pytest.raises(ValueError, match=r"^y is float64"):
        kernels.backward_weight(o.y[..., :10], o.x, o.w)
    with pytest.raises(ValueError, match=r"^norms is float64"):
        kernels.row_norms(o.w, np.empty(3))
