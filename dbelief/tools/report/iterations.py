"""`curves.png` of a batch method: loss, gradient, accuracy and pass times, over its iterations."""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .panels import Marks, Panel, draw_panels, figure_of
from .plot_style import (
    BLUE,
    GREEN,
    QUIET,
    EvaluationCurves,
    Series,
    draw_accuracy,
    draw_loss,
    set_scale,
    time_scale,
)

_GRADIENT_SPAN = 10.0  # a gradient that falls by more than this factor is drawn on a logarithmic axis


class Iterations:
    """Iterations in a run's events; iterations that were rolled back are replaced by their repetition."""

    def __init__(self) -> None:
        self.loss, self.gradient_norm = Series(), Series()
        self.evaluations = EvaluationCurves()
        self.passes: list[tuple[float, float]] = []  # iteration, seconds; several to an iteration
        self.marks = Marks()
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
        self.marks.take(event, self._done if kind == "iteration" else None)


def draw_iterations(method: Iterations, path: Path, title: str) -> None:
    """Draw the panels that have data over one axis of iterations.

    Parameters
    ----------
    path
        The PNG file.
    title
        Title above the panels.
    """
    panels = draw_panels(_panels(method), title, method.marks, "no iteration is done")
    panels[-1].set_xlabel("iterations")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    panels[-1].set_xlim(left=0)
    figure_of(panels[0]).savefig(path, format="png")


def _panels(method: Iterations) -> list[Panel]:
    """The panels that have data."""

    def draw_losses(axes: Axes) -> None:
        _draw_line(axes, method.loss, BLUE, "training")
        draw_loss(axes, method.loss, method.evaluations.loss)

    found = []
    if method.loss or method.evaluations.loss:
        found.append(Panel(2.6, draw_losses))
    if method.gradient_norm:
        found.append(Panel(2.6, lambda axes: _draw_gradient(axes, method)))
    if method.evaluations.accuracy or method.evaluations.test_accuracy is not None:
        found.append(Panel(2.2, lambda axes: draw_accuracy(axes, method.evaluations)))
    if method.passes:
        found.append(Panel(1.8, lambda axes: _draw_passes(axes, method.passes)))
    return found


def _draw_gradient(axes: Axes, method: Iterations) -> None:
    axes.set_ylabel("gradient norm")
    _draw_line(axes, method.gradient_norm, GREEN, "of the training loss")
    set_scale(axes, method.gradient_norm.values, _GRADIENT_SPAN)


def _draw_line(axes: Axes, series: Series, colour: str, label: str) -> None:
    if series:
        few = len(series.at) <= 60
        axes.plot(series.at, series.values, color=colour, linewidth=1.6, marker="." * few, markersize=5, label=label)


def _draw_passes(axes: Axes, passes: list[tuple[float, float]]) -> None:
    at, seconds = zip(*passes, strict=True)
    unit, scale = time_scale(max(seconds))
    axes.set_ylabel(f"time of a pass ({unit})")
    values = [scale * one for one in seconds]
    middle = median(values)
    axes.plot(at, values, color=BLUE, linestyle="", marker=".", markersize=4, alpha=0.6)
    axes.axhline(middle, color=QUIET, linestyle=(0, (5, 3)), linewidth=1.2, label=f"median {middle:,.3g} {unit}")
    set_scale(axes, values, math.inf)
