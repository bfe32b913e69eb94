"""Panels of a run's curves, one above the other over the same axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from .marks import Marks
from .plot_style import add_legend, calm, new_figure, state_missing

# Inches around the panels. A layout engine would measure every label, which takes longer than to draw them all, while
# the user waits for the end of the job.
_LEFT, _RIGHT = 0.9, 0.15  # tick labels of seven digits
_LABEL = 0.22  # from the left edge to the labels of the vertical axes
_TITLE, _GAP, _LINE = 0.3, 0.16, 0.19  # _LINE: of a legend
_SCALE = 0.5  # a horizontal axis with its label


@dataclass(frozen=True)
class Panel:
    """One panel: its height (inches), and the function that draws it."""

    height: float
    draw: Callable[[Axes], None]


def draw_panels(panels: Sequence[Panel], title: str, marks: Marks, missing: str, scales: int = 1) -> list[Axes]:
    """Draw panels with marks and legends; without any panel, one that states `missing`.

    Parameters
    ----------
    scales
        Horizontal axes below the last panel for which there is room.

    Returns
    -------
    list of Axes
        From top to bottom.
    """
    heights = [panel.height for panel in panels] or [2.0]
    figure = new_figure(title, 0.6 + sum(heights), layout=None)
    drawn = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False)[:, 0])
    for panel, axes in zip(panels, drawn, strict=False):
        panel.draw(axes)
        calm(axes)
    if panels:
        marks.draw(drawn)
    else:
        state_missing(drawn[0], missing)
    for axes in drawn[:-1]:
        axes.xaxis.set_visible(False)  # it is that of the last panel; tick marks are half the cost of a drawing
    legends = [_GAP + _LINE * max(1, add_legend(axes)) for axes in drawn]
    _place(figure, drawn, heights, legends, _SCALE * scales)
    return drawn


def _place(
    figure: Figure, panels: Sequence[Axes], heights: Sequence[float], above: Sequence[float], below: float
) -> None:
    """Set the places of panels of some relative heights, and of the labels of their vertical axes.

    Parameters
    ----------
    above, below
        Inches above each panel, and below the last.
    """
    width, height = figure.get_size_inches()
    top = height - _TITLE
    free = top - sum(above) - below
    for axes, share, legend in zip(panels, heights, above, strict=True):
        inside = free * share / sum(heights)
        top -= legend + inside
        axes.set_position((_LEFT / width, top / height, 1 - (_LEFT + _RIGHT) / width, inside / height))
        along = blended_transform_factory(figure.dpi_scale_trans, axes.transAxes)
        axes.yaxis.set_label_coords(_LABEL, 0.5, transform=along)


def figure_of(axes: Axes) -> Figure:
    """The figure of a panel."""
    return cast(Figure, axes.get_figure())
