"""The picture of what neurons like: which neurons, and which images, the best first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dbelief.arrays.backend import select_backend
from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.tools.report.filters import side_by_side
from dbelief.tools.report.stimuli import ACROSS, choose_neurons, draw_stimuli
from tests.dbelief.nn.autoencoders.test_stacks import IMAGE, SMALL, drawn


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
