"""The picture of a layer's filters: what lies where, and what stands above."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dbelief.nn.kernels import Blocks, depth_to_space
from dbelief.tools.report.filters import as_pixels, draw_filters


@pytest.mark.parametrize("channels", [1, 3])
def test_tiles_become_pixels(channels: int) -> None:
    blocks = Blocks(rows=4, columns=3, window=2, depth=9 * channels, neurons=5)
    weight = np.random.default_rng(0).standard_normal(blocks.w_shape)
    tiles = weight.reshape(-1, *weight.shape[3:]).transpose(1, 2, 3, 0)
    np.testing.assert_array_equal(as_pixels(weight, 3), depth_to_space(tiles, 3))


@pytest.mark.parametrize(("neurons", "channels", "says"), [
    (4, 1, "24 filters of 8 x 8 pixels; 0 % are oriented and of one band"),
    (4, 3, "24 filters of 8 x 8 pixels"),
    (4, 2, "24 filters of 8 x 8 pixels"),
    (200, 1, "576 of 1,200 filters of 8 x 8 pixels"),
])  # fmt: skip
def test_a_grid_of_filters(neurons: int, channels: int, says: str, tmp_path: Path, saved: list[Figure]) -> None:
    blocks = Blocks(rows=3, columns=4, window=2, depth=16 * channels, neurons=neurons)
    weight = np.random.default_rng(0).standard_normal(blocks.w_shape).astype(np.float32)
    draw_filters(weight, 4, tmp_path / "filters.png", "photographs")
    (figure,) = saved
    (axes,) = figure.axes
    assert says in axes.get_title("left")
    (image,) = axes.images
    assert image.get_size()[1] == 24 * 9 + 1
    assert (tmp_path / "filters.png").stat().st_size > 0
