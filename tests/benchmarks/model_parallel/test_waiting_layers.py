"""Layers that wait instead of computing: as long as their products would take, on however few of the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.model_parallel.waiting_layers import NoLoss, waiting
from dbelief.arrays.backend import select_backend
from dbelief.nn import Batch, Dense, Local, Network
from dbelief.nn.layers.convolution import Conv
from dbelief.nn.layers.layer import ReLU, Sigmoid
from dbelief.nn.workspace import Workspace
from dbelief.partition import Grid
from dbelief.process.clock import ManualClock
from worker.comm import run_ranks
from worker.partition.network import PartitionedNetwork

FLOP_PER_S = 1000.0


def taken(layer: Any, inputs: tuple[int, ...], samples: int, wanted: str) -> tuple[float, float]:
    """Seconds forward and backward of a layer that computed nothing but zeros; `wanted` are gradients, dx or both."""
    clock = ManualClock(autojump=True)
    slow, work = waiting(layer, FLOP_PER_S, clock), Workspace(select_backend("cpu"))
    assert isinstance(slow, type(layer))
    assert slow.outputs(inputs) == layer.outputs(inputs)
    x = np.ones((samples, *inputs))
    y = np.ones((samples, *slow.outputs(inputs)))
    parameters = [np.ones(shape) for shape in slow.shapes(inputs)]
    slow.forward(work, x, parameters, y)
    forward_s = clock.now()
    assert not y.any()
    slow.backward(work, x, y, y, parameters, parameters if "gradients" in wanted else [], x if "dx" in wanted else None)
    assert x.any() == ("dx" not in wanted)
    return forward_s, clock.now() - forward_s


@pytest.mark.parametrize(
    ("layer", "inputs", "flop"),
    [
        (Dense(5), (7,), 2 * 7 * 5),
        (Conv(maps=3, kernel=2), (6, 5, 4), 2 * (2 * 2 * 4) * (5 * 4 * 3)),
        (Local(window=4, block=2, maps=3), (8, 6, 5), 2 * (4 * 4 * 5) * (6 * 4 * 3)),
        (Sigmoid(), (7,), 0),
    ],
    ids=["dense", "conv", "local", "sigmoid"],
)
def test_a_layer_waits_for_its_products(layer: Any, inputs: tuple[int, ...], flop: int) -> None:
    for samples in (1, 10):
        one_s = samples * flop / FLOP_PER_S
        assert taken(layer, inputs, samples, "gradients, dx") == pytest.approx((one_s, 2 * one_s))
        assert taken(layer, inputs, samples, "gradients") == pytest.approx((one_s, one_s))
        assert taken(layer, inputs, samples, "dx") == pytest.approx((one_s, one_s))


def test_ranks_wait_for_their_own_parts() -> None:
    """8 -> 6 -> 2 numbers on 2 ranks: half of the work each, 3 products less the one of the first layer's inputs."""

    def rank(comm: Any) -> float:
        clock = ManualClock(autojump=True)
        layers = [waiting(layer, FLOP_PER_S, clock) for layer in (Dense(6), ReLU(), Dense(2))]
        network = PartitionedNetwork(Network(layers, NoLoss(), 8, None, select_backend("cpu")), comm, Grid(1, 2))
        flat = np.zeros(network.layout.size, np.float32)
        views = network.layout.views(flat, comm.rank)
        batch = Batch(np.zeros((5, 8), np.float32), np.zeros(5, np.int64))
        assert network.loss_and_gradient(views, batch, views) == 0.0
        return clock.now()

    own_s = 5 * 2 * (2 * 8 * 3 + 3 * 6 * 1) / FLOP_PER_S
    assert run_ranks(2, rank) == [pytest.approx(own_s)] * 2
