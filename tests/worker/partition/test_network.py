"""A network on any grid of ranks gives what it gives on one: the loss, and every parameter's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import ModelError
from dbelief.nn import Batch, Shape
from dbelief.partition import Grid, Window
from dbelief.partition.cut import cut
from tests.examples import examples
from worker.comm import run_ranks

from .cells import Counts, traffic
from .networks import CLASSES, Layers, check, made

GRIDS = st.builds(Grid, st.integers(1, 3), st.integers(1, 3))
SIZES = st.integers(9, 14)
WIDTHS = st.lists(st.integers(1, 9), min_size=0, max_size=3)


@examples(40)
@given(WIDTHS, st.integers(1, 9), st.integers(1, 7), GRIDS, st.sampled_from(["relu", "tanh", "sigmoid", "dropout"]))
def test_dense_layers_on_any_ranks(widths: list[int], features: int, samples: int, grid: Grid, between: str) -> None:
    layers: Layers = []
    for width in widths:
        layers += [("dense", {"units": width}), (between, {"share": 0.4} if between == "dropout" else {})]
    layers.append(("dense", {"units": CLASSES}))
    run_ranks(grid.size, lambda comm: check(comm, layers, features, samples, grid))
    run_ranks(grid.size, lambda comm: check(comm, layers, features, samples, grid, np.float32, 1e-4))


@examples(40)
@given(st.tuples(SIZES, SIZES, st.integers(1, 3)), st.integers(1, 3), st.integers(1, 2), GRIDS, st.data())
def test_layers_of_images_on_any_ranks(
    shape: tuple[int, int, int], kernel: int, stride: int, grid: Grid, data: st.DataObject
) -> None:
    pool = data.draw(st.sampled_from(["max_pool", "average_pool", "l2_pool"])), {"size": 2}
    layers: Layers = [("conv", {"maps": 2, "kernel": kernel, "stride": stride}), ("relu", {})]
    conv, dropout = ("conv", {"maps": 3, "kernel": 2}), ("dropout", {"share": 0.3})
    layers += data.draw(st.sampled_from([[], [pool], [pool, ("tanh", {})], [conv], [dropout, conv, dropout]]))
    layers.append(("dense", {"units": CLASSES}))
    run_ranks(grid.size, lambda comm: check(comm, layers, shape, 3, grid))


@pytest.mark.parametrize("grid", [Grid(1, 3), Grid(2, 2), Grid(3, 1)])
def test_contrast_normalisation_on_any_ranks(grid: Grid) -> None:
    layers: Layers = [("conv", {"maps": 2, "kernel": 2}), ("lcn", {}), ("dense", {"units": CLASSES})]
    run_ranks(grid.size, lambda comm: check(comm, layers, (13, 12, 1), 2, grid))


@examples(20)
@given(st.data(), GRIDS, st.integers(1, 2), st.integers(1, 3), st.integers(1, 2))
def test_locally_connected_layers_on_any_ranks(
    data: st.DataObject, grid: Grid, channels: int, block: int, stride: int
) -> None:
    """Blocks in numbers that the ranks do not divide, with layers of other kinds after them."""
    tiles = data.draw(st.integers(1, 3), "tiles of a window")
    sides = [stride * (tiles + data.draw(st.integers(4, 7))) for _ in range(2)]
    layers: Layers = [("local", {"window": tiles * stride, "block": block, "maps": 2, "stride": stride}), ("relu", {})]
    plain = ("local", {"window": 2, "block": 1, "maps": 3, "stride": 1})
    after = [[], [plain], [plain, plain], [("max_pool", {"size": 2}), plain], [("lcn", {"size": 3})]]
    layers += [*data.draw(st.sampled_from(after)), ("dense", {"units": CLASSES})]
    features = (*sides, channels)
    run_ranks(grid.size, lambda comm: check(comm, layers, features, 3, grid))
    run_ranks(grid.size, lambda comm: check(comm, layers, features, 3, grid, np.float32, 1e-4))


def test_rows_of_numbers_that_are_an_image() -> None:
    layers: Layers = [
        ("image", {"height": 4, "width": 5, "channels": 2}),
        ("conv", {"maps": 3, "kernel": 2}),
        ("dense", {"units": CLASSES}),
    ]
    run_ranks(4, lambda comm: check(comm, layers, 40, 3, Grid(2, 2)))


def traffic_of(layers: Layers, features: Any, samples: int, grid: Grid) -> tuple[Counts, Counts]:
    """Messages and bytes of one step of a network."""
    batch = Batch(np.ones((samples, *np.atleast_1d(features))), np.zeros(samples, np.int64))
    return traffic(lambda: made(layers, features), grid, batch)


def test_activation_goes_once_to_each_rank_that_needs_it() -> None:
    """8 -> 6 -> 3 numbers on 3 ranks, 5 samples of 8 bytes: 2 of 6 go to each other rank, their gradients come back;
    and 1 of 3 outputs goes to each.
    """
    layers: Layers = [("dense", {"units": 6}), ("tanh", {}), ("dense", {"units": CLASSES})]
    each = 5 * 8 * (2 + 2 + 1)
    _, sent = traffic_of(layers, 8, 5, Grid(1, 3))
    assert sent == {(i, j): each for i in range(3) for j in range(3) if i != j}


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
    _, sent = traffic_of(layers, (12, 9, 1), 1, Grid(2, 1))
    assert sent == {(0, 1): 8 * there, (1, 0): 8 * back}


def test_locally_connected_layers_exchange_only_borders() -> None:
    """Windows of 3 x 3 on 12 x 10 pixels, then of 4 x 4 for blocks of 2 x 2, cut in two rows."""
    layers: Layers = [
        ("local", {"window": 3, "block": 1, "maps": 4}),
        ("local", {"window": 4, "block": 2, "maps": 2}),
        ("dense", {"units": 1}),
        ("dense", {"units": CLASSES}),
    ]
    # As above: of the first one's 10 x 8 x 4 outputs row 5 goes up, row 4 down; the second's are 8 x 6 x 2. No
    # parameter goes anywhere.
    border, half = 8 * 4, 4 * 6 * 2
    there, back = (border + half + 0 + 1) + (border + 0 + 1), (border + 0 + 1 + 2) + (border + half + 0)
    messages, sent = traffic_of(layers, (12, 10, 1), 1, Grid(2, 1))
    assert sent == {(0, 1): 8 * there, (1, 0): 8 * back}
    assert messages == {(0, 1): 5, (1, 0): 5}


def sees(layer: dict[str, int], blocks: Shape, grid: Grid) -> np.ndarray:
    """Which pixels each rank's blocks see, marked block by block: (ranks, height, width)."""
    stride, window = layer["stride"], layer["window"]
    marks = np.zeros((grid.size, *((n - 1) * stride + window for n in blocks)), bool)
    for rank, part in enumerate(grid.windows(*blocks)):
        for i, j in np.ndindex(*blocks):
            if part.start[0] <= i < part.stop[0] and part.start[1] <= j < part.stop[1]:
                top, left = i * stride, j * stride
                marks[rank, top : top + window, left : left + window] = True
    return marks


@examples(20)
@given(GRIDS, st.integers(1, 2), st.integers(1, 2), st.integers(1, 3))
def test_traffic_of_two_locally_connected_layers(grid: Grid, block: int, stride: int, tiles: int) -> None:
    """For each ordered pair what one computes of the first layer and the other's blocks of the second see; and back."""
    first = {"window": 3, "block": 1, "maps": 2, "stride": 1}
    second = {"window": tiles * stride, "block": block, "maps": CLASSES, "stride": stride}
    down, across = 5, 4  # blocks of the second
    height, width = (stride * (n + tiles - 1) for n in (down, across))
    layers: Layers = [("local", first), ("local", second), ("average_pool", {"size": block * across, "stride": 1})]
    layers.append(("dense", {"units": CLASSES}))
    seen = sees(second, (down, across), grid)
    owned = np.zeros_like(seen)
    for rank, part in enumerate(grid.windows(height, width)):
        owned[rank][part.within(Window.whole((height, width)))] = True
    _, sent = traffic_of(layers, (height + 2, width + 2, 1), 2, grid)
    _, after = traffic_of(layers[1:], (height, width, 2), 2, grid)
    pairs = [(i, j) for i in range(grid.size) for j in range(grid.size) if i != j]
    halo = {(i, j): int((owned[i] & seen[j]).sum()) * 2 * 2 * 8 for i, j in pairs}
    assert {pair: sent[pair] - after[pair] for pair in pairs} == {(i, j): halo[i, j] + halo[j, i] for i, j in pairs}


@pytest.mark.parametrize("between", [("relu", {}), ("dropout", {"share": 0.5})])
def test_elementwise_layers_move_nothing(between: tuple[str, dict[str, float]]) -> None:
    """7 blocks of 2 pixels on 3 ranks end elsewhere than 14 pixels would, cut evenly."""
    local = ("local", {"window": 4, "block": 2, "maps": 2})
    after: Layers = [("conv", {"maps": 2, "kernel": 3}), ("dense", {"units": CLASSES})]
    shape, grid = (16, 16, 1), Grid(1, 3)
    assert traffic_of([local, between, *after], shape, 2, grid) == traffic_of([local, *after], shape, 2, grid)


def test_uncuttable_model_is_named() -> None:
    layers = [
        ("dense", {"units": 4}),
        ("image", {"height": 2, "width": 2, "channels": 1}),
        ("dense", {"units": CLASSES}),
    ]
    with pytest.raises(ModelError, match=r"^layer image1: cannot be cut over ranks: it may only come first"):
        cut(made(layers, 5).stages, Grid(1, 2))
