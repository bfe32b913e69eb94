"""`filters.png`: the filters of a block-local layer's neurons, block by block, and how many of them are edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .orientation import are_edges
from .plot_style import new_panel

_ACROSS = 24  # filters in a row
_MOST = 24 * 24  # that are drawn; more would be indistinguishable


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
