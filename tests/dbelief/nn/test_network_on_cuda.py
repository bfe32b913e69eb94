"""The same network on a CUDA device: needs CuPy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dbelief.backend import Backend, choose
from dbelief.nn import Batch, build_network

LAYERS: Any = [
    ("dense", {"units": 40}), ("relu", {}),
    ("dense", {"units": 30}), ("sigmoid", {}),
    ("dense", {"units": 20}), ("tanh", {}),
    ("dense", {"units": 10}),
]  # fmt: skip


def step(backend: Backend, loss: str, inputs: np.ndarray, targets: np.ndarray) -> tuple[Any, ...]:
    """Give loss, gradient and evaluation of one step, on the host."""
    network = build_network(LAYERS, loss, features=50, outputs=10, backend=backend)
    views: Mapping[str, Any] = {
        name: backend.to_device(value) for name, value in network.parameters(np.random.default_rng(0)).items()
    }
    out = {name: backend.xp.full_like(view, np.nan) for name, view in views.items()}
    batch = Batch(backend.to_device(inputs), backend.to_device(targets))
    mean = network.loss_and_gradient(views, batch, out)
    gradient = np.concatenate([backend.to_host(out[name]).ravel() for name in views])
    return mean, gradient, network.evaluate(views, batch)


@pytest.mark.gpu
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "square"])
def test_cuda_agrees_with_the_host(cuda: Backend, loss: str) -> None:
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((64, 50), dtype=np.float32)
    targets = rng.integers(0, 10, 64) if loss != "square" else rng.standard_normal((64, 10), dtype=np.float32)
    mean, gradient, (total, right) = step(cuda, loss, inputs, targets)
    host_mean, host_gradient, (host_total, host_right) = step(choose("cpu"), loss, inputs, targets)
    assert mean == pytest.approx(host_mean, rel=1e-5)
    assert total == pytest.approx(host_total, rel=1e-5)
    assert right == host_right
    np.testing.assert_allclose(gradient, host_gradient, rtol=1e-3, atol=1e-5)
