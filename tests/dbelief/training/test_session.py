import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.data import load
from dbelief.errors import ModelError, NonFinite
from dbelief.job import Job
from dbelief.nn import Batch
from dbelief.optim.gradients import check_finite
from dbelief.training.session import build_model, initial_values
from tests.jobs import CLASSES, small_job


def job_of(**fields: Any) -> Job:
    model = {"layers": [{"dense": 4}, "relu", {"dense": 2}], "loss": "softmax_cross_entropy"}
    return small_job(**{"model": model, "data": CLASSES, **fields})


class Drawn:
    """A model whose tensors are what it is told."""

    def __init__(self, **tensors: Any) -> None:
        self.tensors = tensors

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {name: draw(rng) if callable(draw) else draw for name, draw in self.tensors.items()}

    def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
        raise AssertionError("nobody asked for a gradient")


def normal(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((3, 2), dtype=np.float32)


def test_the_same_job_gives_the_same_bits() -> None:
    model = Drawn(w=normal, alpha=np.float32(0.5), b=np.ones(2, np.float32))
    layout, first = initial_values(job_of(seed=5), model)
    again, second = initial_values(job_of(seed=5), model)
    assert layout.digest() == again.digest()
    assert first.dtype == np.float32
    assert first.tobytes() == second.tobytes()
    np.testing.assert_array_equal(layout.views(first)["w"], normal(np.random.default_rng(5)))
    np.testing.assert_array_equal(first[6:], [0.5, 1, 1])


IMAGES = {
    "layers": [
        {"image": {"height": 8, "width": 8}}, {"conv": {"maps": 6, "kernel": 3}}, "relu", {"max_pool": 2},
        {"dropout": 0.2}, {"dense": 10},
    ],
    "loss": "one_vs_all",
}  # fmt: skip


def test_layers_of_images_come_from_the_job() -> None:
    found = []
    for seed in (1, 1, 2):
        job = job_of(model=IMAGES, data={"source": "digits"}, seed=seed)
        data = load(job.data, job.folder)
        assert data.train is not None
        model, _ = build_model(job, data, select_backend("cpu"))
        layout, values = initial_values(job_of(), model)
        assert [(box.name, box.shape) for box in layout.boxes] == [
            ("conv1.weight", (3, 3, 1, 6)),
            ("conv1.bias", (6,)),
            ("dense1.weight", (54, 10)),
            ("dense1.bias", (10,)),
        ]
        batch = Batch(np.ascontiguousarray(data.train.inputs[:5], np.float32) / 16, data.train.targets[:5])
        found.append(model.loss_and_gradient(layout.views(values), batch, layout.views(np.empty_like(values))))
    assert found[0] == found[1] != found[2]  # the seed of dropout's masks


def test_image_layers_on_flat_data_name_the_missing_layer() -> None:
    job = job_of(model={**IMAGES, "layers": IMAGES["layers"][1:]}, data={"source": "digits"})
    with pytest.raises(
        ModelError, match=r"^layer conv1: takes images, but gets 64 numbers per sample; a layer {image: "
    ):
        build_model(job, load(job.data, job.folder), select_backend("cpu"))


@pytest.mark.parametrize("wrong", [np.zeros(3), [1.0, 2.0], np.zeros(3, np.int32), np.zeros(3, np.float16)])
def test_tensors_that_are_not_float32_are_named(wrong: Any) -> None:
    with pytest.raises(ModelError, match=r"parameters\(rng\): 'b' is (float64|int32|float16), wanted float32"):
        initial_values(job_of(), Drawn(a=np.zeros(2, np.float32), b=wrong))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match="no parameters"):
        initial_values(job_of(), Drawn())


def test_layers_take_their_sizes_from_the_data() -> None:
    job = job_of()
    model, source = build_model(job, load(job.data, job.folder), select_backend("cpu"))
    layout, flat = initial_values(job, model)
    assert source == ""
    assert sum(math.prod(box.shape) for box in layout.boxes) == layout.size == flat.size == 3 * 4 + 4 + 4 * 2 + 2


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ([2, 2, 2], r"image is \[2, 2, 2\], samples hold 64 numbers"),
        (None, r"samples have shape \(64,\), not \(height, width, channels\): give image"),
        ([8, 4, 2], r"window is 8 pixels, images are 8 x 4"),
    ],
)
def test_an_autoencoder_needs_images(image: list[int] | None, says: str) -> None:
    job = job_of(model={"autoencoder": {"window": 8, "image": image}}, data={"source": "digits"})
    with pytest.raises(ModelError, match=f"^autoencoder: {says}$"):
        build_model(job, load(job.data, job.folder), select_backend("cpu"))


def test_an_autoencoder_takes_its_sizes_from_the_data() -> None:
    layer = {"window": 4, "block": 2, "maps": 3, "pool": 2, "image": [8, 8, 1]}
    job = job_of(model={"autoencoder": layer}, data={"source": "digits"})
    model, source = build_model(job, load(job.data, job.folder), select_backend("cpu"))
    layout, _ = initial_values(job, model)
    assert source == ""
    assert [box.shape for box in layout.boxes] == [(3, 3, 12, 2, 2, 4), (1,)]


def test_layers_without_data_suggest_a_python_model() -> None:
    with pytest.raises(ModelError, match="use a Python model"):
        build_model(job_of(), None, select_backend("cpu"))


PAIR = Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float32)})


@given(arrays(np.float32, PAIR.size, elements=st.floats(-(2**50), 2**50, width=32)))
def test_the_norm_of_finite_numbers(values: np.ndarray) -> None:
    assert check_finite(values, PAIR) == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-5, abs=1e-18)


def test_overflowing_squares_are_still_finite() -> None:
    values = np.full(10, 3e38, np.float32)
    assert check_finite(values, PAIR) == pytest.approx(3e38 * 10**0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("position", "tensor"), [(0, "w"), (5, "w"), (6, "b"), (9, "b")])
def test_non_finite_gradient_is_named_and_counted(bad: float, position: int, tensor: str) -> None:
    values = np.ones(10, np.float32)
    values[position] = bad
    with pytest.raises(NonFinite, match=rf"gradient of '{tensor}' holds -?(nan|inf) \(1 of 10 numbers"):
        check_finite(values, PAIR)


def test_infinities_of_both_signs_do_not_cancel() -> None:
    values = np.zeros(10, np.float32)
    values[[2, 7, 8]] = [np.inf, -np.inf, np.nan]
    with pytest.raises(NonFinite, match=r"loss of 'w' holds inf \(3 of 10 numbers"):
        check_finite(values, PAIR, "loss")
