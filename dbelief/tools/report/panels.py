"""Panels of a run's curves, one above the other over the same axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .marks import Marks
from .plot_style import add_legend, calm, new_figure, state_missing


@dataclass(frozen=True)
class Panel:
    """One panel: its height (inches), and the function that draws it."""

    height: float
    draw: Callable[[Axes], None]


def draw_panels(panels: Sequence[Panel], title: str, marks: Marks, missing: str) -> list[Axes]:
    """Draw panels with marks and legends; without any panel, one that states `missing`.

    Returns
    -------
    list of Axes
        From top to bottom.
    """
    heights = [panel.height for panel in panels] or [2.0]
    figure = new_figure(title, 0.6 + sum(heights))
    drawn = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0])
    for panel, axes in zip(panels, drawn, strict=False):
        panel.draw(axes)
        calm(axes)
    if panels:
        marks.draw(drawn)
    else:
        state_missing(drawn[0], missing)
    for axes in drawn:
        add_legend(axes)
    figure.align_ylabels()
    return drawn


def figure_of(axes: Axes) -> Figure:
    """The figure of a panel."""
    return cast(Figure, axes.get_figure())
