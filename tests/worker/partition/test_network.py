"""A network on any grid of ranks gives what it gives on one: the loss, and every parameter's gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbelief.errors import ModelError
from worker.comm import run_ranks
from worker.partition import Grid
from worker.partition.cut import cut

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
