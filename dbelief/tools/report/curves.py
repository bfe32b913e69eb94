"""`curves.png`: loss, accuracy and staleness over the trained samples; for a batch method see `iterations`."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from .iterations import Iterations, draw_iterations
from .plot_style import BLUE, GREEN, QUIET, Evaluations, Series, calm, draw_accuracy, draw_loss, finish, new_figure

_SMOOTHING = 80  # a smoothed line averages 1/80 of its points to either side, twice


class _Story:
    """The curves in a run's events."""

    def __init__(self) -> None:
        self.loss, self.staleness = Series(), Series()
        self.evaluations = Evaluations()
        self.warm_start: float | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Add the next event."""
        kind, samples = event.get("event"), event.get("samples")
        if kind == "progress":
            self.loss.add(samples, event.get("loss"))
            self.staleness.add(samples, event.get("staleness"))
        elif kind == "evaluation":
            self.evaluations.take(event, samples)
        elif kind == "warm_start":
            self.warm_start = samples

    def end(self) -> float:
        """The last sample of any curve; 0 where there is none."""
        every = (self.loss, self.staleness, self.evaluations.loss, self.evaluations.accuracy)
        return max((series.at[-1] for series in every if series), default=0.0)


def draw_curves(events: Iterable[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw three panels over one axis of samples; the panel of an empty series states that.

    For a batch method, use `draw_iterations`.

    Parameters
    ----------
    events
        As `read_events` yields them.
    path
        The PNG file.
    title
        Title above the panels.
    """
    story, method = _Story(), Iterations()
    for event in events:
        story.take(event)
        method.take(event)
    if method:
        draw_iterations(method, path, title)
        return
    figure = new_figure(title, 8.6)
    loss, accuracy, staleness = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    if story.loss:
        _draw_smoothed(loss, story.loss, None, BLUE, "training")
    draw_loss(loss, story.loss, story.evaluations.loss, "no loss was reported")
    draw_accuracy(accuracy, story.evaluations)
    _draw_staleness(staleness, story)
    for panel in (loss, accuracy, staleness):
        calm(panel)
        if story.warm_start is not None:
            panel.axvline(story.warm_start, color=QUIET, linestyle=":", linewidth=1.2, zorder=1)
    if story.warm_start is not None:
        _name_warm_start(loss, story.warm_start, to_the_left=story.warm_start > 0.6 * story.end())
    staleness.set_xlabel("samples")
    _set_samples_scale(staleness, story.end())
    figure.align_ylabels()
    figure.savefig(path, format="png")


def _draw_staleness(axes: Axes, story: _Story) -> None:
    axes.set_ylabel("staleness (versions)")
    if story.staleness:
        _draw_smoothed(axes, story.staleness, story.warm_start, GREEN, "mean of pushes")
        axes.set_ylim(bottom=0, top=max(1.0, 1.08 * max(story.staleness.values)))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    finish(axes, "no staleness was measured", "lower right")


def _draw_smoothed(axes: Axes, series: Series, cut: float | None, colour: str, label: str) -> None:
    """Draw the points, faint, and their moving mean; a short series is drawn unsmoothed.

    No mean crosses `cut`: staleness jumps at the end of the warm start, and the line must not rise before it.
    """
    reach = len(series.values) // _SMOOTHING
    if reach < 2:
        axes.plot(series.at, series.values, color=colour, linewidth=1.6, label=label)
        return
    at = 0 if cut is None else bisect_right(series.at, cut)
    parts = (np.asarray(series.values[:at]), np.asarray(series.values[at:]))
    # Twice, since the mean of a mean has no corners where an outlier enters or leaves the window.
    smooth = np.concatenate([moving_mean(moving_mean(part, reach), reach) for part in parts])
    axes.plot(series.at, series.values, color=colour, linewidth=0.7, alpha=0.25)
    axes.plot(series.at, smooth, color=colour, linewidth=1.8, label=label)


def _set_samples_scale(axes: Axes, end: float) -> None:
    if end > 0:
        axes.set_xlim(0, 1.02 * end)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.set_xticks([])


def _name_warm_start(axes: Axes, samples: float, *, to_the_left: bool) -> None:
    axes.annotate(
        "warm start ended",
        xy=(samples, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if to_the_left else 4, -4),
        textcoords="offset points",
        ha="right" if to_the_left else "left",
        va="top",
        fontsize=8,
        color=QUIET,
    )


def moving_mean(values: np.ndarray, reach: int) -> np.ndarray:
    """Mean of each of the (n,) values with up to `reach` neighbours on either side; (n,) float64.

    Near the ends fewer neighbours are used, the same number on both sides, so that a slope is not distorted; but at
    least a third of `reach`, so that the line does not end on a single noisy value.
    """
    total = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    last = len(values) - 1
    at = np.arange(len(values))
    wide = np.maximum(np.minimum(reach, np.minimum(at, last - at)), reach // 3)
    low, high = np.maximum(at - wide, 0), np.minimum(at + wide, last) + 1
    mean: np.ndarray = (total[high] - total[low]) / (high - low)
    return mean
