"""The same network on a CUDA device: needs CuPy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.nn import Batch, SparseAutoencoder, build_network
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.nn.autoencoders.stacks import Stacks
from tests.dbelief.nn.autoencoders.test_stacks import IMAGE, SMALL, drawn

LAYERS: Any = [
    ("dense", {"units": 40}), ("relu", {}),
    ("dense", {"units": 30}), ("sigmoid", {}),
    ("dense", {"units": 20}), ("tanh", {}),
    ("dense", {"units": 10}),
]  # fmt: skip


IMAGES: Any = [
    ("image", {"height": 16, "width": 16, "channels": 1}),
    ("conv", {"maps": 4, "kernel": 3}), ("relu", {}), ("max_pool", {"size": 2}), ("lcn", {"size": 3}),
    ("local", {"window": 2, "block": 1, "maps": 3}), ("l2_pool", {"size": 2}), ("dropout", {"share": 0.2}),
    ("dense", {"units": 10}),
]  # fmt: skip


def step(backend: Backend, loss: str, inputs: np.ndarray, targets: np.ndarray, layers: Any) -> tuple[Any, ...]:
    """Give loss, gradient and evaluation of one step, on the host."""
    network = build_network(layers, loss, features=inputs.shape[1], outputs=10, backend=backend)
    return model_step(backend, network, inputs, targets)


def model_step(backend: Backend, network: Any, inputs: np.ndarray, targets: np.ndarray) -> tuple[Any, ...]:
    """The same of any model."""
    views: Mapping[str, Any] = {
        name: backend.to_device(value) for name, value in network.parameters(np.random.default_rng(0)).items()
    }
    out = {name: backend.xp.full_like(view, np.nan) for name, view in views.items()}
    batch = Batch(backend.to_device(inputs), backend.to_device(targets))
    mean = network.loss_and_gradient(views, batch, out)
    gradient = np.concatenate([backend.to_host(out[name]).ravel() for name in views])
    return mean, gradient, network.evaluate(views, batch)


def check(cuda: Backend, loss: str, inputs: np.ndarray, targets: np.ndarray, layers: Any, near: float) -> None:
    """A step of a network on the device gives what it gives on the host; `near`: relative difference of the losses."""
    mean, gradient, (total, right) = step(cuda, loss, inputs, targets, layers)
    host_mean, host_gradient, (host_total, host_right) = step(select_backend("cpu"), loss, inputs, targets, layers)
    assert mean == pytest.approx(host_mean, rel=near)
    assert total == pytest.approx(host_total, rel=near)
    assert right == host_right
    np.testing.assert_allclose(gradient, host_gradient, rtol=100 * near, atol=near)


def check_model(cuda: Backend, make: Callable[[Backend], Any], inputs: np.ndarray) -> None:
    """Compare a step of a model without classes on both."""
    (mean, gradient, (total, _)), (host_mean, host_gradient, (host_total, _)) = (
        model_step(backend, make(backend), inputs, np.zeros(10, np.int64)) for backend in (cuda, select_backend("cpu"))
    )
    assert mean == pytest.approx(host_mean, rel=1e-4)
    assert total == pytest.approx(host_total, rel=1e-4)
    np.testing.assert_allclose(gradient, host_gradient, rtol=1e-3, atol=1e-3 * np.abs(host_gradient).max())


@pytest.mark.gpu
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "square"])
def test_cuda_agrees_with_the_host(cuda: Backend, loss: str) -> None:
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((64, 50), dtype=np.float32)
    targets = rng.integers(0, 10, 64) if loss != "square" else rng.standard_normal((64, 10), dtype=np.float32)
    check(cuda, loss, inputs, targets, LAYERS, 1e-5)


@pytest.mark.gpu
def test_layers_of_images_agree_with_the_host(cuda: Backend) -> None:
    rng = np.random.default_rng(2)
    inputs, targets = rng.standard_normal((16, 256), dtype=np.float32), rng.integers(0, 10, 16)
    check(cuda, "softmax_cross_entropy", inputs, targets, IMAGES, 1e-4)


@pytest.mark.gpu
def test_an_embedding_agrees_with_the_host(cuda: Backend) -> None:
    layers: Any = [("embedding", {"entries": 30, "width": 7}), ("dropout", {"share": 0.1}), ("dense", {"units": 10})]
    rng = np.random.default_rng(4)
    inputs, targets = rng.integers(0, 30, (64, 12)), rng.integers(0, 10, 64)
    check(cuda, "softmax_cross_entropy", inputs, targets, layers, 1e-5)


@pytest.mark.gpu
def test_an_autoencoder_agrees_with_the_host(cuda: Backend) -> None:
    rng, eq1 = np.random.default_rng(3), Eq1(window=8, block=4, maps=3, pool=3)
    inputs = rng.standard_normal((10, 24 * 20 * 2), dtype=np.float32)

    check_model(cuda, lambda backend: SparseAutoencoder((24, 20, 2), eq1, backend), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("train", [2, None])
def test_stacks_agree_with_the_host(cuda: Backend, train: int | None) -> None:
    w = drawn(IMAGE, SMALL, "float32")
    inputs = np.random.default_rng(4).standard_normal((10, *IMAGE), dtype=np.float32)

    check_model(cuda, lambda backend: Stacks(IMAGE, SMALL, train, w, backend), inputs)


@pytest.mark.gpu
def test_neurons_agree_with_the_host(cuda: Backend) -> None:
    w, chosen = drawn(IMAGE, SMALL, "float32"), np.arange(10)
    inputs = np.random.default_rng(5).standard_normal((10, *IMAGE), dtype=np.float32)
    here, there = (
        Neurons(IMAGE, SMALL, w, backend).gradients(inputs, chosen) for backend in (cuda, select_backend("cpu"))
    )
    for found, expected in zip(here, there, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
