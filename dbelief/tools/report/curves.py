"""`curves.png`: loss, accuracy and staleness over the trained samples; for a batch method see `iterations`."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from dbelief.monitor.rounds import late_word

from .iterations import Iterations, draw_iterations
from .panels import Marks, Panel, draw_panels, figure_of
from .plot_style import BLUE, GREEN, QUIET, EvaluationCurves, Series, draw_accuracy, draw_loss

_FEW = 10  # a line of so few points could be too short to be seen without markers
_SMOOTHING = 80  # a smoothed line averages 1/80 of its points to either side, twice


class _Story:
    """The curves in a run's events."""

    def __init__(self) -> None:
        self.loss, self.staleness = Series(), Series()
        self.evaluations = EvaluationCurves()
        self.marks = Marks()
        self.epoch_samples = 0.0  # 0 while unknown
        self.late = late_word({})

    def take(self, event: Mapping[str, Any]) -> None:
        """Add the next event."""
        kind, samples = event.get("event"), event.get("samples")
        if kind == "progress":
            self.loss.add(samples, event.get("loss"))
            self.staleness.add(samples, event.get("staleness"))
            self.late = late_word(event)
            if samples and event.get("epoch"):
                self.epoch_samples = samples / event["epoch"]
        elif kind == "evaluation":
            self.evaluations.take(event, samples)
        self.marks.take(event, samples if kind in ("progress", "warm_start") else None)

    def end(self) -> float:
        """The last sample of any curve; 0 where there is none."""
        every = (self.loss, self.staleness, self.evaluations.loss, self.evaluations.accuracy)
        return max((series.at[-1] for series in every if series), default=0.0)


def draw_curves(events: Iterable[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw loss, accuracy and staleness, each in a panel, over one axis of samples; a panel without data is left out.

    Members that fail, join or leave during training are marked. For a batch method, `draw_iterations` is used.

    Parameters
    ----------
    events
        As `read_events` yields them.
    path
        The PNG file.
    title
        Title above the panels; of a failed run "(failed)" is appended.
    """
    story, method, failed = _Story(), Iterations(), False
    for event in events:
        story.take(event)
        method.take(event)
        if event.get("event") == "state":
            failed = event.get("state") == "failed"
    title += " (failed)" * failed
    if method:
        draw_iterations(method, path, title)
        return
    epochs = 0 < story.epoch_samples <= story.end()
    panels = draw_panels(_panels(story), title, story.marks, "no progress was reported", scales=1 + epochs)
    panels[-1].set_xlabel("samples")
    _set_samples_scale(panels[-1], story.end())
    if epochs:
        _add_epochs(panels[-1], story.epoch_samples)
    figure_of(panels[0]).savefig(path, format="png")


def _panels(story: _Story) -> list[Panel]:
    """The panels that have data."""

    def draw_losses(axes: Axes) -> None:
        if story.loss:
            _draw_smoothed(axes, story.loss, None, BLUE, "training (running mean)")
        draw_loss(axes, story.loss, story.evaluations.loss)

    found = []
    if story.loss or story.evaluations.loss:
        found.append(Panel(3.0, draw_losses))
    if story.evaluations.accuracy or story.evaluations.test_accuracy is not None:
        found.append(Panel(3.0, lambda axes: draw_accuracy(axes, story.evaluations)))
    if any(story.staleness.values):  # synchronous strategies have none
        found.append(Panel(2.0, lambda axes: _draw_staleness(axes, story)))
    return found


def _draw_staleness(axes: Axes, story: _Story) -> None:
    axes.set_ylabel("{} ({})".format(*story.late))
    _draw_smoothed(axes, story.staleness, story.marks.warm_start, GREEN, "mean of pushes")
    axes.set_ylim(bottom=0, top=max(1.0, 1.08 * max(story.staleness.values)))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _draw_smoothed(axes: Axes, series: Series, cut: float | None, colour: str, label: str) -> None:
    """Draw the points, faint, and their moving mean; a short series is drawn unsmoothed, a few points with markers.

    No mean crosses `cut`: staleness jumps at the end of the warm start, and the line must not rise before it.
    """
    reach = len(series.values) // _SMOOTHING
    if reach < 2:
        marker = "o" * (len(series.at) <= _FEW)
        axes.plot(series.at, series.values, color=colour, linewidth=1.6, marker=marker, markersize=5, label=label)
        return
    at = 0 if cut is None else bisect_right(series.at, cut)
    parts = (np.asarray(series.values[:at]), np.asarray(series.values[at:]))
    # Twice, since the mean of a mean has no corners where an outlier enters or leaves the window.
    smooth = np.concatenate([moving_mean(moving_mean(part, reach), reach) for part in parts])
    axes.plot(series.at, series.values, color=colour, linewidth=0.8, alpha=0.35, label=label)
    axes.plot(series.at, smooth, color=colour, linewidth=1.8, label="the same, smoothed")


def _set_samples_scale(axes: Axes, end: float) -> None:
    if end > 0:
        axes.set_xlim(0, 1.02 * end)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.set_xticks([])


def _add_epochs(axes: Axes, epoch_samples: float) -> None:
    """Add an axis of epochs below that of the samples; above the panels are legends and marks."""
    functions = partial(np.multiply, 1 / epoch_samples), partial(np.multiply, epoch_samples)
    epochs = axes.secondary_xaxis("bottom", functions=functions)
    epochs.spines["bottom"].set_position(("outward", 36))
    epochs.spines["bottom"].set_color(QUIET)
    epochs.tick_params(color=QUIET, labelsize=9)
    epochs.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    epochs.set_xlabel("epochs")


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
