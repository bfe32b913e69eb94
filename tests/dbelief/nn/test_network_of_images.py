"""Networks of every layer of images: gradients, memory, and digits learnt."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.data import load
from dbelief.job import DigitsData
from dbelief.nn import Batch, Network, build_network
from tests.dbelief.nn.conftest import Check
from tests.traced import traced

CPU = select_backend("cpu")
EVERY: list[tuple[str, dict[str, Any]]] = [
    ("conv", {"maps": 6, "kernel": 3}), ("sigmoid", {}), ("l2_pool", {"size": 2}), ("lcn", {"size": 3}),
    ("conv", {"maps": 4, "kernel": 2}), ("tanh", {}), ("average_pool", {"size": 2, "stride": 1}),
    ("max_pool", {"size": 2}), ("local", {"window": 2, "block": 2, "maps": 3, "stride": 1}), ("dense", {"units": 5}),
]  # fmt: skip


def every(loss: str = "softmax_cross_entropy") -> Network:
    return build_network(EVERY, loss, features=(14, 13), outputs=5, backend=CPU)


def batch_of(m: int, kind: type) -> Batch:
    rng = np.random.default_rng(m)
    return Batch(rng.standard_normal((m, 14, 13)).astype(kind), rng.integers(0, 5, m))


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "one_vs_all"])
def test_gradient_through_every_layer(check_gradient: Check, loss: str) -> None:
    network, batch = every(loss), batch_of(3, np.float64)
    views = {name: p.astype(np.float64) for name, p in network.parameters(np.random.default_rng(0)).items()}
    out = {name: np.full_like(p, np.nan) for name, p in views.items()}
    network.loss_and_gradient(views, batch, out)
    check_gradient(lambda: network.evaluate(views, batch)[0] / 3, list(views.values()), [out[name] for name in views])


def test_the_steady_state_allocates_next_to_nothing() -> None:
    network = build_network([*EVERY[:-1], ("dropout", {"share": 0.5}), EVERY[-1]], "one_vs_all", features=(40, 38),
                            outputs=5, backend=CPU)  # fmt: skip
    rng = np.random.default_rng(0)
    views = network.parameters(rng)
    out = {name: np.empty_like(p) for name, p in views.items()}
    batches = [Batch(rng.standard_normal((m, 40, 38)).astype(np.float32), rng.integers(0, 5, m)) for m in (24, 9)]
    for batch in batches:
        network.loss_and_gradient(views, batch, out)
    for batch in batches:
        _, kept, peak = traced(partial(network.loss_and_gradient, views, batch, out), steady=True)
        assert peak < 16_384 < batch.inputs.nbytes / 3
        assert kept < 1024


def test_digits_are_learnt() -> None:
    """Conv, ReLU, max pool and dense, by momentum SGD in one thread."""
    data = load(DigitsData(source="digits"), Path())
    layers: list[tuple[str, dict[str, Any]]] = [
        ("image", {"height": 8, "width": 8}), ("conv", {"maps": 24, "kernel": 3}), ("relu", {}),
        ("max_pool", {"size": 2}), ("dense", {"units": 10}),
    ]  # fmt: skip
    network = build_network(layers, "softmax_cross_entropy", features=data.features, outputs=10, backend=CPU)
    rng = np.random.default_rng(0)
    views = network.parameters(rng)
    assert data.train is not None
    assert data.test is not None
    out, speed = ({name: np.zeros_like(p) for name, p in views.items()} for _ in range(2))
    buffer = data.train.buffer(32)
    for _ in range(20):
        for indices in np.split(rng.permutation(len(data.train))[:1248], 39):
            network.loss_and_gradient(views, data.train.gather(indices, buffer), out)
            for name, view in views.items():
                speed[name] = 0.9 * speed[name] - 0.02 * out[name]
                view += speed[name]
    test = data.test.gather(np.arange(len(data.test)), data.test.buffer(len(data.test)))
    _, right = network.evaluate(views, test)
    assert right is not None
    assert right / len(test) >= 0.97
