"""`curves.png`: loss, accuracy and staleness over the samples a run has trained."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FormatStrFormatter, MaxNLocator, NullFormatter

# Colour-blind safe (Okabe and Ito), and apart in grey too.
_TRAINING, _VALIDATION, _TEST, _STALENESS = "#0072B2", "#D55E00", "#3C3C3C", "#009E73"
_QUIET = "#8C8C8C"
_SMOOTHING = 80  # a smoothed line averages this share of its points to either side, twice
_DECADE_SPAN = 30.0  # a loss that falls further than by this factor is drawn on a logarithmic axis


class _Series:
    """Points of one curve, in the order of their samples."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.values: list[float] = []

    def add(self, samples: Any, value: Any) -> None:
        """Add a point; points that a run went back behind, since it was resumed, are dropped.

        A value that is missing or not finite leaves a gap that the line bridges.
        """
        if samples is None or value is None or not math.isfinite(value):
            return
        while self.samples and self.samples[-1] >= samples:
            self.samples.pop()
            self.values.pop()
        self.samples.append(float(samples))
        self.values.append(float(value))

    def __bool__(self) -> bool:
        return bool(self.samples)


class _Story:
    """The curves in a run's events."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self.loss, self.staleness = _Series(), _Series()
        self.validation_loss, self.validation_accuracy = _Series(), _Series()
        self.test_accuracy: float | None = None
        self.warm_start: float | None = None
        for event in events:
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, samples = event.get("event"), event.get("samples")
        if kind == "progress":
            self.loss.add(samples, event.get("loss"))
            self.staleness.add(samples, event.get("staleness"))
        elif kind == "evaluation" and event.get("set") == "validation":
            self.validation_loss.add(samples, event.get("loss"))
            self.validation_accuracy.add(samples, event.get("accuracy"))
        elif kind == "evaluation" and event.get("set") == "test":
            self.test_accuracy = event.get("accuracy")
        elif kind == "warm_start":
            self.warm_start = samples

    def end(self) -> float:
        """The last sample of any curve; 0 where there is none."""
        every = (self.loss, self.staleness, self.validation_loss, self.validation_accuracy)
        return max((series.samples[-1] for series in every if series), default=0.0)


def draw_curves(events: Iterable[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw three panels over one axis of samples; a series without points leaves its panel saying so.

    Parameters
    ----------
    events
        As `read_events` yields them.
    path
        The PNG file.
    title
        Stands above the panels.
    """
    story = _Story(events)
    figure = Figure(figsize=(8.0, 8.6), dpi=120, layout="constrained", facecolor="white")
    loss, accuracy, staleness = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    figure.suptitle(title, x=0.015, ha="left", fontsize=13, fontweight="bold")
    _draw_loss(loss, story)
    _draw_accuracy(accuracy, story)
    _draw_staleness(staleness, story)
    for panel in (loss, accuracy, staleness):
        _calm(panel)
        if story.warm_start is not None:
            panel.axvline(story.warm_start, color=_QUIET, linestyle=":", linewidth=1.2, zorder=1)
    if story.warm_start is not None:
        _name_warm_start(loss, story.warm_start, to_the_left=story.warm_start > 0.6 * story.end())
    staleness.set_xlabel("samples")
    _set_samples_scale(staleness, story.end())
    figure.align_ylabels()
    figure.savefig(path, format="png")


def _draw_loss(axes: Axes, story: _Story) -> None:
    axes.set_ylabel("loss")
    if story.loss:
        _draw_smoothed(axes, story.loss, None, _TRAINING, "training")
    if story.validation_loss:
        _draw_points(axes, story.validation_loss.samples, story.validation_loss.values, "validation")
    _set_loss_scale(axes, story.loss.values + story.validation_loss.values)
    _finish(axes, "no loss was reported", "upper right")


def _draw_accuracy(axes: Axes, story: _Story) -> None:
    axes.set_ylabel("accuracy (%)")
    if story.validation_accuracy:
        percent = [100.0 * value for value in story.validation_accuracy.values]
        label = f"validation, best: {max(percent):.2f} %"
        _draw_points(axes, story.validation_accuracy.samples, percent, label, line=True)
    if story.test_accuracy is not None:
        percent_test = 100.0 * story.test_accuracy
        axes.axhline(
            percent_test,
            color=_TEST,
            linestyle=(0, (5, 3)),
            linewidth=1.2,
            label=f"test: {percent_test:.2f} %",
        )
    _finish(axes, "no accuracy was measured", "lower right")


def _draw_staleness(axes: Axes, story: _Story) -> None:
    axes.set_ylabel("staleness (versions)")
    if story.staleness:
        _draw_smoothed(axes, story.staleness, story.warm_start, _STALENESS, "mean of pushes")
        axes.set_ylim(bottom=0, top=max(1.0, 1.08 * max(story.staleness.values)))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    _finish(axes, "no staleness was measured", "lower right")


def _draw_smoothed(axes: Axes, series: _Series, cut: float | None, colour: str, label: str) -> None:
    """The points as they came, faint, and their moving mean; a short series is drawn as it is.

    Nothing is averaged across `cut`: staleness jumps where the warm start ends, and must not seem to rise
    before.
    """
    reach = len(series.values) // _SMOOTHING
    if reach < 2:
        axes.plot(series.samples, series.values, color=colour, linewidth=1.6, label=label)
        return
    at = 0 if cut is None else bisect_right(series.samples, cut)
    parts = (np.asarray(series.values[:at]), np.asarray(series.values[at:]))
    # Twice, since the mean of a mean has no corners where an outlier enters or leaves.
    smooth = np.concatenate([moving_mean(moving_mean(part, reach), reach) for part in parts])
    axes.plot(series.samples, series.values, color=colour, linewidth=0.7, alpha=0.25)
    axes.plot(series.samples, smooth, color=colour, linewidth=1.8, label=label)


def _draw_points(axes: Axes, samples: list[float], values: list[float], label: str, *, line: bool = False) -> None:
    """Markers, while there are few enough to tell apart; a line between them if asked for, or instead."""
    size = 5.0 if len(samples) <= 60 else 0.0
    axes.plot(
        samples,
        values,
        color=_VALIDATION,
        marker="o",
        markersize=size,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1.4 if line or not size else 0.0,
        label=label,
        zorder=3,
    )


def _set_loss_scale(axes: Axes, values: list[float]) -> None:
    low, high = min(values, default=1.0), max(values, default=1.0)
    if low > 0 and high > _DECADE_SPAN * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif low >= 0:
        axes.set_ylim(bottom=0)


def _set_samples_scale(axes: Axes, end: float) -> None:
    if end > 0:
        axes.set_xlim(0, 1.02 * end)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.set_xticks([])


def _finish(axes: Axes, missing: str, corner: Literal["upper right", "lower right"]) -> None:
    """A legend for what was drawn, or a word on what is missing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, loc=corner, frameon=False, fontsize=9)
        return
    axes.set_yticks([])
    axes.text(0.5, 0.5, missing, transform=axes.transAxes, ha="center", va="center", color=_QUIET)


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
        color=_QUIET,
    )


def _calm(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    axes.tick_params(color=_QUIET, labelsize=9)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)


def moving_mean(values: np.ndarray, reach: int) -> np.ndarray:
    """Mean of each of the (n,) values with up to `reach` neighbours on either side; (n,) float64.

    Towards the ends fewer are taken, alike on both sides, so that a slope is not bent; but never fewer than a
    third of `reach`, lest the line end on a single noisy value.
    """
    total = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    last = len(values) - 1
    at = np.arange(len(values))
    wide = np.maximum(np.minimum(reach, np.minimum(at, last - at)), reach // 3)
    low, high = np.maximum(at - wide, 0), np.minimum(at + wide, last) + 1
    mean: np.ndarray = (total[high] - total[low]) / (high - low)
    return mean
