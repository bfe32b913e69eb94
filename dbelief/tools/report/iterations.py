"""`curves.png` of a batch method: loss, gradient, accuracy and pass times, over its iterations."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .plot_style import (
    BLUE,
    GREEN,
    QUIET,
    Evaluations,
    Series,
    calm,
    draw_accuracy,
    draw_loss,
    finish,
    new_figure,
    set_scale,
    time_scale,
)

_GRADIENT_SPAN = 10.0  # a gradient that falls by more than this factor is drawn on a logarithmic axis


class Iterations:
    """Iterations in a run's events; iterations that were rolled back are replaced by their repetition."""

    def __init__(self) -> None:
        self.loss, self.gradient_norm = Series(), Series()
        self.evaluations = Evaluations()
        self.passes: list[tuple[float, float]] = []  # iteration, seconds; several to an iteration
        self._done = 0

    def __bool__(self) -> bool:
        return bool(self.loss or self.passes)

    def take(self, event: Mapping[str, Any]) -> None:
        """Add the next event."""
        kind = event.get("event")
        if kind == "iteration":
            self._done = event["iteration"]
            self.loss.add(self._done, event.get("loss"))
            self.gradient_norm.add(self._done, event.get("gradient_norm"))
        elif kind == "pass":
            while self.passes and self.passes[-1][0] > event["iteration"]:
                self.passes.pop()
            self.passes.append((event["iteration"], event["seconds"]))
        elif kind == "evaluation":
            self.evaluations.take(event, self._done)


def draw_iterations(method: Iterations, path: Path, title: str) -> None:
    """Draw the panels over one axis of iterations; the accuracy panel only where there is an accuracy.

    Parameters
    ----------
    path
        The PNG file.
    title
        Title above the panels.
    """
    measured = bool(method.evaluations.accuracy) or method.evaluations.test_accuracy is not None
    heights = (2.6, 2.6, 2.2, 1.6) if measured else (3, 3, 1.8)
    figure = new_figure(title, 0.8 + sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    _draw_line(panels[0], method.loss, BLUE, "training")
    draw_loss(panels[0], method.loss, method.evaluations.loss, "no iteration is done")
    _draw_gradient(panels[1], method)
    if measured:
        draw_accuracy(panels[2], method.evaluations)
    _draw_passes(panels[-1], method)
    for panel in panels:
        calm(panel)
    panels[-1].set_xlabel("iterations")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    panels[-1].set_xlim(left=0)
    figure.align_ylabels()
    figure.savefig(path, format="png")


def _draw_gradient(axes: Axes, method: Iterations) -> None:
    axes.set_ylabel("gradient norm")
    _draw_line(axes, method.gradient_norm, GREEN, "of the training loss")
    set_scale(axes, method.gradient_norm.values, _GRADIENT_SPAN)
    finish(axes, "no iteration is done", "upper right")


def _draw_line(axes: Axes, series: Series, colour: str, label: str) -> None:
    if series:
        few = len(series.at) <= 60
        axes.plot(series.at, series.values, color=colour, linewidth=1.6, marker="." * few, markersize=5, label=label)


def _draw_passes(axes: Axes, method: Iterations) -> None:
    axes.set_ylabel("time of a pass")
    if method.passes:
        at, seconds = zip(*method.passes, strict=True)
        unit, scale = time_scale(max(seconds))
        axes.set_ylabel(f"time of a pass ({unit})")
        values = [scale * one for one in seconds]
        middle = median(values)
        axes.plot(at, values, color=BLUE, linestyle="", marker=".", markersize=4, alpha=0.6)
        axes.axhline(middle, color=QUIET, linestyle=(0, (5, 3)), linewidth=1.2, label=f"median {middle:,.3g} {unit}")
        axes.set_ylim(bottom=0, top=1.3 * max(values) or 1.0)  # room for the legend
    finish(axes, "no pass is complete", "upper right")
