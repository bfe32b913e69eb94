"""Pictures of neurons: what lies where, what stands above, and which images are shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dbelief.arrays.backend import select_backend
from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.nn.kernels import Blocks, depth_to_space
from dbelief.tools.report.neuron_pictures import (
    ACROSS,
    as_pixels,
    choose_neurons,
    draw_filters,
    draw_stimuli,
    side_by_side,
)
from tests.dbelief.nn.autoencoders.test_stacks import IMAGE, SMALL, drawn


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


def test_most_selective_neurons_are_chosen_with_their_sign() -> None:
    responses = np.random.default_rng(0).standard_normal((500, 30))
    responses[7, 11], responses[3, 20] = 40, -30
    (first, up), (second, down) = [(k, sign) for _, k, sign in choose_neurons(responses)[:2]]
    assert (first, up, second, down) == (11, 1, 20, -1)
    assert len({k for _, k, _ in choose_neurons(responses)}) == 8


def test_each_row_is_a_stimulus_and_the_best_images(tmp_path: Path, saved: list[Figure]) -> None:
    neurons = Neurons(IMAGE, SMALL, drawn(IMAGE, SMALL), select_backend("cpu"))
    images = np.random.default_rng(1).standard_normal((40, *IMAGE))
    responses = neurons.responses(images)
    chosen = [("one", 3, 1), ("other", 9, -1)]
    draw_stimuli(neurons, chosen, images, responses, tmp_path / "stimuli.png", "deep", seed=0)
    (figure,) = saved
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "other"]
    (image,) = axes.images
    sheet = np.asarray(image.get_array()).reshape(*image.get_size(), 1)
    height, width, _ = IMAGE
    assert sheet.shape[:2] == (2 * (height + 1) + 1, (1 + ACROSS) * (width + 1) + 1)
    for row, (_, neuron, sign) in enumerate(chosen):
        liked = images[np.argsort(-sign * responses[:, neuron])[:ACROSS]]
        expected = side_by_side(liked, ACROSS)
        top = row * (height + 1)
        np.testing.assert_array_equal(sheet[top : top + height + 2, width + 1 :], expected)
    assert (tmp_path / "stimuli.png").stat().st_size > 0
