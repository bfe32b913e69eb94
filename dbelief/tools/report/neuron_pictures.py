"""Pictures of an autoencoder's neurons: `filters.png` and `stimuli.png`.

`filters.png` has the filters of a block-local layer, block by block, and how many of them are edges. `stimuli.png` has
for a few neurons their optimal stimulus, and the images with the largest responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.nn.optimal_stimulus import optimal_stimuli

from .orientation import are_edges
from .plot_style import DARK, new_panel

_ACROSS = 24  # filters in a row
_MOST = 24 * 24  # that are drawn; more would be indistinguishable
ROWS, ACROSS = 8, 12  # neurons, and images of each
_STARTS, _STEPS = 4, 100

Chosen = Sequence[tuple[str, int, int]]
"""For each chosen neuron its label in the plot, its number, and 1, or -1 where its smallest response counts."""


def as_pixels(weight: np.ndarray, block: int) -> np.ndarray:
    """Weights in tiles (nr, nc, F, g, g, block block channels) as images (nr nc F, height, width, channels)."""
    *norms, g, _, depth = weight.shape
    tiles = weight.reshape(-1, g, g, block, block, depth // block**2)
    return tiles.swapaxes(2, 3).reshape(int(np.prod(norms)), g * block, g * block, -1)


def draw_filters(weight: np.ndarray, block: int, path: Path, title: str) -> None:
    """Draw filters in a grid, each on its own scale, where grey is 0; the title has the number of edge filters of all.

    Parameters
    ----------
    weight : (nr, nc, F, g, g, block block channels)
        Where there are too many, an evenly spaced selection is drawn. Three channels are drawn as colours, any other
        number as their mean.
    block
        Side of a tile, pixels.
    path
        The PNG file.
    title
        Title above the grid.
    """
    filters = as_pixels(weight, block)
    edges = are_edges(filters)
    shown = filters[np.linspace(0, len(filters) - 1, min(len(filters), _MOST)).astype(int)]
    sheet = side_by_side(shown, _ACROSS)
    drawn = f"{len(shown):,} of {len(filters):,} filters" if len(shown) < len(filters) else f"{len(filters):,} filters"
    described = (
        f"{drawn} of {filters.shape[1]} x {filters.shape[2]} pixels; {100 * edges.mean():.0f} % are oriented and"
    )
    height = 0.9 + 7.6 * sheet.shape[0] / sheet.shape[1]
    figure, axes = new_panel(title, height, f"{described} of one band of frequencies")
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    figure.savefig(path, format="png")


def side_by_side(filters: np.ndarray, most: int) -> np.ndarray:
    """All filters (n, height, width, channels), `most` in a row, a white line between: (height, width, 1 or 3), 0 to 1.

    Each is on its own scale, where grey is 0.
    """
    n, high, wide, channels = filters.shape
    if channels != 3:
        filters = filters.mean(axis=-1, keepdims=True)
    largest = abs(filters).max(axis=(1, 2, 3), keepdims=True)
    grey = 0.5 + 0.5 * filters / np.where(largest > 0, largest, 1)
    across = min(n, most)
    sheet = np.ones((-(-n // across) * (high + 1) + 1, across * (wide + 1) + 1, grey.shape[-1]))
    for place, one in enumerate(grey):
        y, x = 1 + place // across * (high + 1), 1 + place % across * (wide + 1)
        sheet[y : y + high, x : x + wide] = one
    return sheet


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
