"""A partitioned network against the whole one, as a function of one rank; on threads and by `mpiexec`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.nn import Batch, Network, build_network
from dbelief.partition import Grid
from worker.comm import Communicator
from worker.partition.network import PartitionedNetwork

Layers = list[tuple[str, dict[str, Any]]]
CLASSES = 3


def made(layers: Layers, features: Any, outputs: int = CLASSES) -> Network:
    return build_network(
        layers, "softmax_cross_entropy", features=features, outputs=outputs, backend=select_backend("cpu")
    )


def check(
    comm: Communicator,
    layers: Layers,
    features: Any,
    samples: int,
    grid: Grid,
    dtype: Any = np.float64,
    within: float = 1e-12,
    overlaps: bool = True,
) -> None:
    """Loss, right answers and this rank's part of the gradient are those of the whole network, step after step."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((samples, *np.atleast_1d(features))).astype(dtype)
    batch = Batch(inputs, rng.integers(0, CLASSES, samples))
    whole = made(layers, features)
    tensors = {name: values.astype(dtype) for name, values in whole.parameters(np.random.default_rng(1)).items()}
    expected = {name: np.empty_like(values) for name, values in tensors.items()}
    loss = whole.loss_and_gradient(tensors, batch, expected)

    network = PartitionedNetwork(made(layers, features), comm, grid, overlaps)
    layout = network.layout
    flat = layout.flatten(tensors, np.empty(layout.size, dtype))
    views = layout.views(flat, comm.rank)
    for _ in range(2):  # nothing is left over from a step
        gradient = np.full_like(flat, np.nan)
        found = layout.views(gradient, comm.rank)
        assert network.loss_and_gradient(views, batch, found) == pytest.approx(loss, rel=within)
        boxes = [box for box in layout.boxes if box.rank == comm.rank]
        assert sorted(found) == sorted(box.name for box in boxes)
        for box in boxes:
            scale = np.abs(expected[box.name]).max() or 1.0
            np.testing.assert_allclose(
                found[box.name] / scale, expected[box.name][box.index] / scale, rtol=0, atol=within, err_msg=box.name
            )
    total, right = network.evaluate(views, batch)
    wanted, wanted_right = whole.evaluate(tensors, batch)
    assert total == pytest.approx(wanted, rel=within)
    assert right == wanted_right


def several(comm: Communicator) -> None:
    """Networks of all kinds of layers, on all grids of four ranks."""
    blocks: Layers = [
        ("local", {"window": 4, "block": 3, "maps": 2, "stride": 2}),
        ("relu", {}),
        ("max_pool", {"size": 2}),
    ]
    blocks += [("local", {"window": 2, "block": 1, "maps": 3}), ("lcn", {"size": 3})]
    image: Layers = [("conv", {"maps": 2, "kernel": 3}), ("relu", {}), ("max_pool", {"size": 2}), ("lcn", {})]
    for rows, columns in ((1, 4), (2, 2), (4, 1)):
        check(comm, [("dense", {"units": 6}), ("tanh", {}), ("dense", {"units": CLASSES})], 5, 4, Grid(rows, columns))
        check(comm, [*image, ("dense", {"units": CLASSES})], (23, 22, 2), 3, Grid(rows, columns))
        check(comm, [*blocks, ("dense", {"units": CLASSES})], (16, 14, 2), 3, Grid(rows, columns))
