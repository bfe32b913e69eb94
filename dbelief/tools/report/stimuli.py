"""`stimuli.png`: for a few neurons their optimal stimulus, and the images with the largest responses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.nn.optimal_stimulus import optimal_stimuli

from .filters import side_by_side
from .plot_style import DARK, new_panel

ROWS, ACROSS = 8, 12  # neurons, and images of each
_STARTS, _STEPS = 4, 100

Chosen = Sequence[tuple[str, int, int]]
"""For each chosen neuron its label in the plot, its number, and 1, or -1 where its smallest response counts."""


def choose_neurons(responses: np.ndarray) -> Chosen:
    """Default choice of neurons: those that respond to few images, by the largest kurtosis of (n, neurons)."""
    centred = responses - responses.mean(axis=0)
    spread = np.maximum((centred**2).mean(axis=0), np.finfo(responses.dtype).tiny)
    kurtosis = (centred**4).mean(axis=0) / spread**2
    skew = (centred**3).mean(axis=0)
    order = np.argsort(-kurtosis, kind="stable")[:ROWS]
    return [(f"neuron {k}", int(k), 1 if skew[k] >= 0 else -1) for k in order]


def draw_stimuli(
    neurons: Neurons, chosen: Chosen, images: np.ndarray, responses: np.ndarray, path: Path, title: str, seed: int
) -> None:
    """Draw a row for each neuron: its optimal stimulus, then the images with its largest responses, in order.

    Parameters
    ----------
    images : (n, height, width, channels)
    responses : (n, neurons)
        Of all neurons to these images.
    seed
        Of the random starting points of the search for a stimulus.
    """
    which, signs = (np.array(values) for values in zip(*((k, sign) for _, k, sign in chosen), strict=True))
    starts = np.random.default_rng(seed).standard_normal((_STARTS, *neurons.image)).astype(neurons.dtype)
    best = optimal_stimuli(neurons.gradients, which, starts, _STEPS, signs=signs)
    order = np.argsort(-signs * responses[:, which], axis=0, kind="stable")[:ACROSS].T
    rows = np.stack([np.concatenate([one[None], images[row]]) for one, row in zip(best.images, order, strict=True)])
    across = rows.shape[1]
    sheet = side_by_side(rows.reshape(-1, *rows.shape[2:]), across)
    side = sheet.shape[1] / across
    caption = "the image that a neuron answers to most, then those of the data that it likes best"
    figure, axes = new_panel(title, 0.7 + 7.0 * sheet.shape[0] / sheet.shape[1], caption)
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.axvline(side, color="white", linewidth=4)
    axes.set_xticks([])
    axes.set_yticks([side * (row + 0.5) for row in range(len(chosen))], [label for label, _, _ in chosen], fontsize=8)
    axes.tick_params(length=0, colors=DARK)
    axes.spines[:].set_visible(False)
    figure.savefig(path, format="png")
