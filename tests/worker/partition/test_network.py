"""A network on any grid of ranks gives what it gives on one: the loss, and every parameter's gradient."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbelief.errors import ModelError
from dbelief.nn import Batch
from dbelief.partition import Grid
from dbelief.partition.cut import cut
from worker.comm import Comm, run_ranks
from worker.comm.tracing import Tracing
from worker.partition.network import PartitionedNetwork

from .networks import CLASSES, Layers, check, made

GRIDS = st.builds(Grid, st.integers(1, 3), st.integers(1, 3))
SIZES = st.integers(9, 14)
WIDTHS = st.lists(st.integers(1, 9), min_size=0, max_size=3)


@settings(max_examples=40, deadline=None)
@given(WIDTHS, st.integers(1, 9), st.integers(1, 7), GRIDS, st.sampled_from(["relu", "tanh", "sigmoid"]))
def test_dense_layers_on_any_ranks(widths: list[int], features: int, samples: int, grid: Grid, between: str) -> None:
    layers: Layers = []
    for width in widths:
        layers += [("dense", {"units": width}), (between, {})]
    layers.append(("dense", {"units": CLASSES}))
    run_ranks(grid.size, lambda comm: check(comm, layers, features, samples, grid))
    run_ranks(grid.size, lambda comm: check(comm, layers, features, samples, grid, np.float32, 1e-5))


@settings(max_examples=40, deadline=None)
@given(st.tuples(SIZES, SIZES, st.integers(1, 3)), st.integers(1, 3), st.integers(1, 2), GRIDS, st.data())
def test_layers_of_images_on_any_ranks(
    shape: tuple[int, int, int], kernel: int, stride: int, grid: Grid, data: st.DataObject
) -> None:
    pool = data.draw(st.sampled_from(["max_pool", "average_pool", "l2_pool"])), {"size": 2}
    layers: Layers = [("conv", {"maps": 2, "kernel": kernel, "stride": stride}), ("relu", {})]
    layers += data.draw(st.sampled_from([[], [pool], [pool, ("tanh", {})], [("conv", {"maps": 3, "kernel": 2})]]))
    layers.append(("dense", {"units": CLASSES}))
    run_ranks(grid.size, lambda comm: check(comm, layers, shape, 3, grid))


@pytest.mark.parametrize("grid", [Grid(1, 3), Grid(2, 2), Grid(3, 1)])
def test_contrast_normalisation_on_any_ranks(grid: Grid) -> None:
    layers: Layers = [("conv", {"maps": 2, "kernel": 2}), ("lcn", {}), ("dense", {"units": CLASSES})]
    run_ranks(grid.size, lambda comm: check(comm, layers, (13, 12, 1), 2, grid))


def test_rows_of_numbers_that_are_an_image() -> None:
    layers: Layers = [
        ("image", {"height": 4, "width": 5, "channels": 2}),
        ("conv", {"maps": 3, "kernel": 2}),
        ("dense", {"units": CLASSES}),
    ]
    run_ranks(4, lambda comm: check(comm, layers, 40, 3, Grid(2, 2)))


def traffic(layers: Layers, features: Any, samples: int, grid: Grid) -> dict[tuple[int, int], int]:
    """Bytes of one step, by (from, to), as a tracing engine counts them."""

    def rank(comm: Comm) -> Counter[tuple[int, int]]:
        engine = Tracing(comm.engine)
        network = PartitionedNetwork(made(layers, features), Comm(engine), grid)
        flat = np.zeros(network.layout.size)
        views = network.layout.views(flat, comm.rank)
        inputs = np.ones((samples, *np.atleast_1d(features)))
        batch = Batch(inputs, np.zeros(samples, np.int64))
        network.loss_and_gradient(views, batch, network.layout.views(np.zeros_like(flat), comm.rank))
        return engine.sent_bytes

    return dict(sum(run_ranks(grid.size, rank), Counter()))


def test_an_activation_goes_once_to_each_rank_that_needs_it() -> None:
    """8 -> 6 -> 3 numbers on 3 ranks, 5 samples of 8 bytes: 2 of 6 go to each other rank, their gradients come back;
    and 1 of 3 outputs goes to each.
    """
    layers: Layers = [("dense", {"units": 6}), ("tanh", {}), ("dense", {"units": CLASSES})]
    each = 5 * 8 * (2 + 2 + 1)
    assert traffic(layers, 8, 5, Grid(1, 3)) == {(i, j): each for i in range(3) for j in range(3) if i != j}


def test_of_an_image_only_the_border_goes_to_a_neighbour() -> None:
    """Two convolutions of 3 x 3 on 12 x 9 pixels, cut in two rows: the second needs 2 rows that the other has."""
    layers: Layers = [
        ("conv", {"maps": 4, "kernel": 3}),
        ("conv", {"maps": 2, "kernel": 3}),
        ("dense", {"units": 1}),
        ("dense", {"units": CLASSES}),
    ]
    # Row 5 of the first one's 10 x 7 x 4 outputs goes up, row 4 down. The one hidden neuron is on rank 1, which needs
    # the 4 x 5 x 2 of rank 0; its value goes to rank 0, and of the 3 outputs 1 and 2 to the other. Gradients come
    # back the same ways, but for those of the outputs. The kernels are rank 0's.
    border, half, kernels = 7 * 4, 4 * 5 * 2, 3 * 3 * 1 * 4 + 4 + 3 * 3 * 4 * 2 + 2
    there = (border + half + 0 + 1) + (border + 0 + 1) + kernels
    back = (border + 0 + 1 + 2) + (border + half + 0) + kernels
    assert traffic(layers, (12, 9, 1), 1, Grid(2, 1)) == {(0, 1): 8 * there, (1, 0): 8 * back}


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([("dense", {"units": 4}), ("dropout", {"share": 0.5})], "layer dropout1: cannot be cut over ranks: its masks"),
        (
            [("dense", {"units": 4}), ("image", {"height": 2, "width": 2, "channels": 1})],
            "layer image1: cannot be cut over ranks: it may only come first",
        ),
    ],
)
def test_what_cannot_be_cut_is_named(layers: Layers, reason: str) -> None:
    with pytest.raises(ModelError, match=f"^{reason}"):
        cut(made([*layers, ("dense", {"units": CLASSES})], 5).stages, Grid(1, 2))
