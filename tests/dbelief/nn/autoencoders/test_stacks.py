"""Stacks against torch's autograd and central differences; what a greedy step leaves alone; sizes as the paper's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Batch, Evaluates
from dbelief.nn.autoencoders.autoencoder import EVALUATED, Eq1, SparseAutoencoder
from dbelief.nn.autoencoders.stack import sizes_of
from dbelief.nn.autoencoders.stacks import Stacks, tensor_shapes
from dbelief.nn.layers.lcn import Lcn
from tests.dbelief.nn.autoencoders.test_autoencoder import gradient, tiled
from tests.examples import examples

Tensors = dict[str, np.ndarray]

GOLDEN = np.load(Path(__file__).parents[3] / "golden" / "torch_stacks.npz")
CPU = select_backend("cpu")
IMAGE = (14, 12, 2)
SMALL = [(Eq1(4, 2, 3, 3), Lcn(3)), (Eq1(4, 2, 2, 2, sparsity=0.4), Lcn(1))]


def drawn(image: tuple[int, int, int], stacks: Sequence[tuple[Eq1, Lcn]], dtype: str = "float64") -> Tensors:
    rng = np.random.default_rng(0)
    shapes = {name: shape for stack in tensor_shapes(image, stacks) for name, shape in stack.items()}
    return {name: rng.standard_normal(shape).astype(dtype) / 2 + (len(shape) == 1) for name, shape in shapes.items()}


def images(m: int, dtype: str = "float64", image: tuple[int, ...] = IMAGE) -> Batch:
    return Batch(np.random.default_rng(1).standard_normal((m, *image)).astype(dtype), np.zeros((m, 1), dtype))


def own(w: Mapping[str, np.ndarray], place: int) -> Tensors:
    return {name: w[f"stack{place}.{name}"] for name in ("weight", "alpha")}


def golden(case: str) -> tuple[Any, list[tuple[Eq1, Lcn]], Tensors]:
    """Images, stacks, and all their tensors."""
    stacks, w = [], {}
    for place, options in enumerate(json.loads(str(GOLDEN[f"{case}.stacks"])), start=1):
        lcn = Lcn(**options.pop("contrast"))
        stacks.append((Eq1(**options), lcn))
        w[f"stack{place}.weight"] = tiled(GOLDEN[f"{case}.{place}.weight"], options["block"])
        w[f"stack{place}.alpha"] = GOLDEN[f"{case}.{place}.alpha"].reshape(1)
    return GOLDEN[f"{case}.images"], stacks, w


def agree(out: Tensors, case: str, place: int, stacks: list[tuple[Eq1, Lcn]], prefix: str) -> None:
    expected = tiled(GOLDEN[f"{case}.{place}.{prefix}_weight"], stacks[place - 1][0].block)
    found = out[f"stack{place}.weight"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * abs(expected).max())
    assert out[f"stack{place}.alpha"][0] == pytest.approx(float(GOLDEN[f"{case}.{place}.{prefix}_alpha"]), rel=1e-11)


@pytest.mark.parametrize("case", ["two", "three"])
def test_the_joint_gradient_is_torch_s(case: str) -> None:
    inputs, stacks, w = golden(case)
    model = Stacks(inputs.shape[1:], stacks, None, {}, CPU)
    loss, out = gradient(model, w, Batch(inputs, np.zeros(0)))
    assert loss == pytest.approx(float(GOLDEN[f"{case}.joint"]), rel=1e-12)
    for place in range(1, len(stacks) + 1):
        agree(out, case, place, stacks, "d")


@pytest.mark.parametrize(("case", "train"), [("two", 1), ("two", 2), ("three", 2), ("three", 3)])
def test_a_greedy_gradient_is_torch_s(case: str, train: int) -> None:
    inputs, stacks, w = golden(case)
    model = Stacks(inputs.shape[1:], stacks, train, w, CPU)
    views = {f"stack{train}.{name}": values for name, values in own(w, train).items()}
    loss, out = gradient(model, views, Batch(inputs, np.zeros(0)))
    assert loss == pytest.approx(float(GOLDEN[f"{case}.{train}.loss"]), rel=1e-12)
    agree(out, case, train, stacks, "greedy")


@examples(20)
@given(st.data())
def test_any_shape(data: st.DataObject) -> None:
    """The joint slope along any direction, of stacks of any blocks, maps and windows that fit."""
    stacks: list[tuple[Eq1, Lcn]] = []
    wanted = 1  # from the top: the side that the stack above must be given
    for _ in range(data.draw(st.integers(2, 3))):
        b, g, pool = (data.draw(st.integers(1, 2)) for _ in range(3))
        lcn = Lcn(data.draw(st.sampled_from([1, 3])))
        side = -(-(wanted + pool - 1 + 2 * (lcn.size - 1)) // b) * b  # of the maps
        eq1 = Eq1(g * b, b, data.draw(st.integers(1, 2)), pool, 0.3, 1e-2)
        stacks.insert(0, (eq1, lcn))
        wanted = side + (g - 1) * b
    image = (wanted, wanted, data.draw(st.integers(1, 2)))
    try:
        w = drawn(image, stacks)
    except ModelError:  # of a side that the blocks above do not divide
        reject()
    batch, model = images(3, image=image), Stacks(image, stacks, None, {}, CPU)
    loss, out = gradient(model, w, batch)
    assert loss == pytest.approx(model.evaluate(w, batch)[0] / 3, rel=1e-12)
    v = {name: np.random.default_rng(5).standard_normal(values.shape) for name, values in w.items()}
    ends = [model.evaluate({n: w[n] + sign * 1e-6 * v[n] for n in w}, batch)[0] / 3 for sign in (1, -1)]
    slope, size = (sum(float(np.vdot(f(out[n]), f(v[n]))) for n in w) for f in (np.asarray, abs))
    assert abs((ends[0] - ends[1]) / 2e-6 - slope) <= 1e-5 * size + 1e-7


def test_greedy_training_on_cached_outputs_is_identical() -> None:
    """The same bits, step by step, whether what stack 2 sees was computed before or is computed each time."""
    w = drawn(IMAGE, SMALL, "float32")
    below = {name: values for name, values in w.items() if name.startswith("stack1")}
    before = {name: values.copy() for name, values in below.items()}
    deep = Stacks(IMAGE, SMALL, 2, w, CPU)
    rng = np.random.default_rng(3)
    batches = [Batch(rng.standard_normal((9, *IMAGE)).astype("float32"), np.zeros(9)) for _ in range(4)]
    kept = [Batch(deep.seen(batch.inputs).copy(), batch.targets) for batch in batches]
    layer = SparseAutoencoder(sizes_of(IMAGE, SMALL)[1].image, SMALL[1][0], CPU)
    here, there = own(w, 2), {name: values.copy() for name, values in own(w, 2).items()}
    losses = []
    for step in range(12):
        named = {f"stack2.{name}": values for name, values in here.items()}
        loss, out = gradient(deep, named, batches[step % 4])
        assert list(out) == ["stack2.weight", "stack2.alpha"]
        other, again = gradient(layer, there, kept[step % 4])
        assert loss == other
        losses.append(loss)
        for name in here:
            here[name] = here[name] - np.float32(0.001) * out[f"stack2.{name}"]
            there[name] = there[name] - np.float32(0.001) * again[name]
        assert all(np.array_equal(here[name], there[name]) for name in here)
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert all(np.array_equal(below[name], before[name]) for name in below)


def test_initial_values_are_drawn_unless_they_are_given() -> None:
    w = drawn(IMAGE, SMALL, "float32")
    both = Stacks(IMAGE, SMALL, None, {}, CPU).parameters(np.random.default_rng(4))
    assert list(both) == ["stack1.weight", "stack1.alpha", "stack2.weight", "stack2.alpha"]
    given = {name: values for name, values in w.items() if name.startswith("stack1")}
    half = Stacks(IMAGE, SMALL, None, given, CPU).parameters(np.random.default_rng(4))
    for name, values in half.items():
        assert np.array_equal(values, given.get(name, both[name]))
    top = Stacks(IMAGE, SMALL, 2, w, CPU).parameters(np.random.default_rng(4))
    assert [np.array_equal(values, w[name]) for name, values in top.items()] == [True, True]


def test_evaluation_is_the_sum_whatever_it_is_cut_into() -> None:
    w, batch = drawn(IMAGE, SMALL), images(EVALUATED + 7)
    for train in (2, None):
        model = Stacks(IMAGE, SMALL, train, w, CPU)
        assert isinstance(model, Evaluates)
        views = {name: w[name] for name in model.parameters(np.random.default_rng(0))}
        loss, right = model.evaluate(views, batch)
        assert right is None
        assert loss == pytest.approx(gradient(model, views, batch)[0] * len(batch), rel=1e-12)


def test_mismatched_sizes_are_named() -> None:
    with pytest.raises(ModelError, match=r"^stack 2: window is 16 pixels, images are 8 x 8$"):
        sizes_of((20, 20, 1), [(Eq1(4, 4), Lcn(5)), (Eq1(16, 4), Lcn(5))])
    with pytest.raises(ModelError, match=r"^stack 1: has windows of 9 x 9 pixels, but gets images of 4 x 4$"):
        sizes_of((8, 8, 1), [(Eq1(4, 4), Lcn(5)), (Eq1(4, 4), Lcn(5))])
    assert sizes_of((8, 8, 1), [(Eq1(4, 4), Lcn(5))])[0].output is None
    with pytest.raises(ModelError, match=r"^stacks: got 90 numbers per sample, expected 336 of images"):
        gradient(Stacks(IMAGE, SMALL, None, {}, CPU), drawn(IMAGE, SMALL), images(2, image=(9, 10, 1)))
