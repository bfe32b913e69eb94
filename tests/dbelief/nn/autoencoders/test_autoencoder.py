"""Eq. 1 against torch's autograd and central differences, and invariants for any numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Batch, Model
from dbelief.nn.autoencoders.autoencoder import Eq1, SparseAutoencoder
from dbelief.nn.kernels import depth_to_space
from tests.examples import examples
from tests.traced import traced

Tensors = dict[str, np.ndarray]

GOLDEN = np.load(Path(__file__).parents[3] / "golden" / "torch_autoencoder.npz")
CPU = select_backend("cpu")
SMALL = Eq1(window=4, block=2, maps=3, pool=3)
IMAGE = (8, 10, 2)


def drawn(model: SparseAutoencoder, seed: int = 0, dtype: str = "float64") -> Tensors:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal(model.blocks.w_shape).astype(dtype)
    return {"weight": weight, "alpha": np.array([0.7], dtype)}


def images(m: int, image: tuple[int, ...] = IMAGE, dtype: str = "float64", seed: int = 1) -> Batch:
    return Batch(np.random.default_rng(seed).standard_normal((m, *image)).astype(dtype), np.zeros((m, 1), dtype))


def gradient(model: Model, w: Mapping[str, np.ndarray], batch: Batch) -> tuple[float, Tensors]:
    """Loss and gradient, written over what is no number."""
    out = {name: np.full_like(values, np.nan) for name, values in w.items()}
    return model.loss_and_gradient(w, batch, out), out


def tiled(weight: np.ndarray, b: int) -> np.ndarray:
    """Receptive fields of pixels (nr, nc, F, fy, fx, c) as tiles (nr, nc, F, g, g, b b c)."""
    *norms, fy, fx, c = weight.shape
    cut = weight.reshape(*norms, fy // b, b, fx // b, b, c).transpose(0, 1, 2, 3, 5, 4, 6, 7)
    return np.ascontiguousarray(cut.reshape(*norms, fy // b, fx // b, b * b * c))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", ["colour", "grey", "untied"])
def test_torch(case: str, dtype: str) -> None:
    golden = {name: GOLDEN[f"{case}.{name}"] for name in ("images", "weight", "alpha", "loss", "d_weight", "d_alpha")}
    eq1 = Eq1(**json.loads(str(GOLDEN[f"{case}.eq1"])))
    model = SparseAutoencoder(golden["images"].shape[1:], eq1, CPU)
    w = {"weight": tiled(golden["weight"], eq1.block).astype(dtype), "alpha": golden["alpha"].reshape(1).astype(dtype)}
    loss, out = gradient(model, w, Batch(golden["images"].astype(dtype), np.zeros(0)))
    near = 1e-12 if dtype == "float64" else 2e-5
    assert loss == pytest.approx(float(golden["loss"]), rel=near)
    assert float(out["alpha"][0]) == pytest.approx(float(golden["d_alpha"]), rel=near)
    expected = tiled(golden["d_weight"], eq1.block)
    np.testing.assert_allclose(out["weight"], expected, rtol=0, atol=near * abs(expected).max())


@examples(30)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.data())
def test_any_shape(g: int, b: int, channels: int, maps: int, data: st.DataObject) -> None:
    """Along any direction, as the gradient says; and batches are means of their samples."""
    image = (b * (g + data.draw(st.integers(0, 2))), b * (g + data.draw(st.integers(0, 2))), channels)
    pool = data.draw(st.integers(1, min(image[:2]) - (g - 1) * b))
    model = SparseAutoencoder(image, Eq1(g * b, b, maps, pool, 0.3, 1e-2), CPU)
    w, batch = drawn(model), images(3, image)
    loss, out = gradient(model, w, batch)
    alone = [gradient(model, w, Batch(batch.inputs[i : i + 1], batch.targets)) for i in range(3)]
    assert loss == pytest.approx(np.mean([one for one, _ in alone]))
    for name, values in out.items():
        np.testing.assert_allclose(values, np.mean([one[name] for _, one in alone], axis=0), rtol=1e-9, atol=1e-11)
    v = {name: np.random.default_rng(5).standard_normal(values.shape) for name, values in w.items()}
    ends = [model.evaluate({n: w[n] + sign * 1e-6 * v[n] for n in w}, batch)[0] / 3 for sign in (1, -1)]
    slope, size = (sum(float(np.vdot(f(out[n]), f(v[n]))) for n in w) for f in (np.asarray, abs))
    assert abs((ends[0] - ends[1]) / 2e-6 - slope) <= 1e-6 * size + 1e-7


def test_initial_values() -> None:
    model = SparseAutoencoder((24, 24, 1), Eq1(12, 4, 4), CPU)
    first, again, other = (model.parameters(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert [(name, values.dtype.str) for name, values in first.items()] == [("weight", "<f4"), ("alpha", "<f4")]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["weight"], other["weight"])
    norms = np.linalg.norm(first["weight"].reshape(-1, model.blocks.fan_in), axis=1)
    assert 0.7 < norms.min() < 1 < norms.max() < 1.3
    free = SparseAutoencoder((24, 24, 1), Eq1(12, 4, 4, sparsity=0.0), CPU)
    batch = images(20, (24, 24, 1), "float32")
    best = [free.evaluate({**first, "alpha": first["alpha"] * np.float32(part)}, batch)[0] for part in (0.95, 1, 1.05)]
    assert best[1] < min(best[0], best[2])


def test_a_map_s_place_is_the_image_s() -> None:
    """An activation answers to the receptive field that its place in y says: neurons are (dy, dx, map) in a block."""
    model = SparseAutoencoder((6, 6, 1), Eq1(window=2, block=2, maps=2, pool=1, sparsity=1.0, eps=0.0), CPU)
    w = {"weight": np.zeros(model.blocks.w_shape), "alpha": np.ones(1)}
    for place in range(8):
        w["weight"][:, :, place, 0, 0, place // 2] = 1
    y = model.blocks.y_shape(1)
    pixels = depth_to_space(np.arange(np.prod(y), dtype=float).reshape(y), 2)[0]  # number of each neuron of y
    batch = images(1, (6, 6, 1))
    assert pixels.shape == (6, 6, 2)
    loss, _ = gradient(model, w, batch)  # W^T W is 2 I, p is |x| in both maps
    assert loss == pytest.approx((batch.inputs**2).sum() + 2 * abs(batch.inputs).sum())


def test_steady_step_allocates_no_batch_arrays() -> None:
    image = (24, 24, 1)
    model = SparseAutoencoder(image, Eq1(8, 4, 2), CPU)
    w = model.parameters(np.random.default_rng(0))
    out = {name: np.empty_like(values) for name, values in w.items()}
    long, short = images(512, image, "float32"), images(9, image, "float32")
    for batch in (long, short):
        model.loss_and_gradient(w, batch, out)
    peak = traced(lambda: [model.loss_and_gradient(w, batch, out) for batch in (short, long)]).peak
    assert peak < long.inputs.nbytes / 2


@pytest.mark.parametrize(
    ("image", "eq1", "says"),
    [
        ((8, 8, 1), Eq1(window=6, block=4), "window is 6 pixels, must be a multiple of block, 4"),
        ((8, 9, 1), Eq1(window=4, block=4), "images of 8 x 9 pixels do not divide into blocks of 4 x 4"),
        ((8, 16, 1), Eq1(window=12, block=4), "window is 12 pixels, images are 8 x 16"),
        ((8, 8, 1), Eq1(window=8, block=4), "pool is 5 neurons, maps are 4 x 4"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(image: tuple[int, int, int], eq1: Eq1, says: str) -> None:
    with pytest.raises(ModelError, match=f"^autoencoder: {says}$"):
        SparseAutoencoder(image, eq1, CPU)


def test_other_images_are_refused() -> None:
    model = SparseAutoencoder(IMAGE, SMALL, CPU)
    with pytest.raises(ModelError, match="got 100 numbers per sample, expected 160 of images"):
        gradient(model, drawn(model), images(2, (10, 10)))
    with pytest.raises(ModelError, match="got inputs of float32, expected float64"):
        gradient(model, drawn(model), images(2, dtype="float32"))
