"""Style of a run's plots, and drawing code that several of them share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter, NullLocator

# Colour-blind safe (Okabe and Ito), and distinguishable in grey.
BLUE, ORANGE, DARK, GREEN = "#0072B2", "#D55E00", "#3C3C3C", "#009E73"
QUIET = "#8C8C8C"
LOSS_SPAN = 30.0  # a loss that falls by more than this factor is drawn on a logarithmic axis
_FEW_DECADES = 300.0  # an axis that spans less than this factor also has labels between the decades
_LONGEST_LEGEND, _SYMBOL = 90, 7  # characters in one line of a legend; width of a symbol and the space around it
_OUTLIER = 10.0  # a value further from the middle 98 % than this multiple of their range is left outside the axis


class Series:
    """Points of one curve, ordered by position: samples, or iterations."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.values: list[float] = []

    def add(self, at: Any, value: Any) -> None:
        """Add a point; earlier points at or after its position, from before a resume, are dropped.

        A value that is missing or not finite leaves a gap that the line bridges.
        """
        if at is None or value is None or not math.isfinite(value):
            return
        while self.at and self.at[-1] >= at:
            self.at.pop()
            self.values.pop()
        self.at.append(float(at))
        self.values.append(float(value))

    def __bool__(self) -> bool:
        return bool(self.at)


class EvaluationCurves:
    """Loss and accuracy on validation data, and the last accuracy on the test set."""

    def __init__(self) -> None:
        self.loss, self.accuracy = Series(), Series()
        self.test_accuracy: float | None = None

    def take(self, event: Mapping[str, Any], at: float | None) -> None:
        """Add an event of kind "evaluation", at a position."""
        if event.get("set") == "validation":
            self.loss.add(at, event.get("loss"))
            self.accuracy.add(at, event.get("accuracy"))
        elif event.get("set") == "test":
            self.test_accuracy = event.get("accuracy")


def new_figure(title: str, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """An empty figure of this height (inches), with a title; a `Figure` without a window, so any thread may draw it."""
    figure = Figure(figsize=(8.0, height), dpi=120, layout=layout, facecolor="white")
    figure.suptitle(title, x=0.015, y=1 - 0.06 / height, ha="left", fontsize=13, fontweight="bold")
    return figure


def new_panel(title: str, height: float, caption: str) -> tuple[Figure, Axes]:
    """A figure as of `new_figure` with one panel, and a caption above it."""
    figure = new_figure(title, height)
    axes: Axes = figure.subplots()
    axes.set_title(caption, loc="left", fontsize=9.5, color=DARK)
    return figure, axes


def time_scale(longest_s: float) -> tuple[str, float]:
    """Unit of a time axis, and its number in a second."""
    return ("s", 1.0) if longest_s >= 10 else ("ms", 1000.0)


def draw_loss(axes: Axes, training: Series, validation: Series) -> None:
    """Draw the losses on validation data beside a drawn training loss, and scale the axis."""
    axes.set_ylabel("loss")
    if validation:
        draw_points(axes, validation.at, validation.values, "validation")
    set_scale(axes, training.values + validation.values, LOSS_SPAN)


def draw_accuracy(axes: Axes, evaluations: EvaluationCurves) -> None:
    """Draw shares of correct answers in percent: on validation data during training, and on the test set at its end."""
    axes.set_ylabel("accuracy (%)")
    if validation := evaluations.accuracy:
        percent = [100.0 * value for value in validation.values]
        label = f"validation, best: {max(percent):.2f} %"
        draw_points(axes, validation.at, percent, label)
    if evaluations.test_accuracy is not None:
        percent_test = 100.0 * evaluations.test_accuracy
        axes.axhline(
            percent_test, color=DARK, linestyle=(0, (5, 3)), linewidth=1.2, label=f"test: {percent_test:.2f} %"
        )
    axes.margins(y=0.1)


def draw_points(axes: Axes, at: list[float], values: list[float], label: str) -> None:
    """Draw a line, with markers while they are distinguishable."""
    axes.plot(
        at,
        values,
        color=ORANGE,
        marker="o",
        markersize=5.0 if len(at) <= 60 else 0.0,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1.4,
        label=label,
        zorder=3,
    )


def set_scale(axes: Axes, values: list[float], span: float) -> None:
    """Scale from 0; logarithmic where all values are positive and their largest and smallest differ by over `span`.

    The axis's label, set before, then says so.
    Outliers are left outside the axis and counted in the legend: one diverged value would flatten the curve.
    """
    low, high = min(values, default=1.0), max(values, default=1.0)
    logarithmic = low > 0 and high > span * low
    inside, outside = _without_outliers(values, logarithmic)
    low, high = min(inside, default=1.0), max(inside, default=1.0)
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylabel(f"{axes.get_ylabel()} (log scale)")
        few = high < _FEW_DECADES * low
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        if few:
            axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif low >= 0:
        axes.set_ylim(bottom=0)
    if outside:
        margin = (high / low) ** 0.05 if logarithmic else 0.05 * (high - low)
        axes.set_ylim(top=high * margin if logarithmic else high + margin)
        if logarithmic or low < 0:
            axes.set_ylim(bottom=low / margin if logarithmic else low - margin)
        axes.plot([], [], " ", label=f"{outside} of {len(values)} points outside")


def _without_outliers(values: list[float], logarithmic: bool) -> tuple[list[float], int]:
    """The values that are not outliers, and the number of those that are."""
    if not values:
        return values, 0
    scaled = np.log(values) if logarithmic else np.asarray(values)
    low, high = np.quantile(scaled, (0.01, 0.99), method="inverted_cdf")
    reach = _OUTLIER * (high - low)
    kept = (scaled >= low - reach) & (scaled <= high + reach)
    inside = [value for value, keep in zip(values, kept, strict=True) if keep]
    return inside, len(values) - len(inside)


def add_legend(axes: Axes) -> int:
    """Add a legend above the panel, where no curve can be, in as few lines as are not too long; how many these are."""
    handles, labels = axes.get_legend_handles_labels()
    lines = 0
    if handles:
        lines = next(n for n in range(1, len(labels) + 1) if n == len(labels) or _width(labels, n) <= _LONGEST_LEGEND)
        axes.legend(
            handles,
            labels,
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=math.ceil(len(handles) / lines),
            frameon=False,
            fontsize=9,
            borderaxespad=0.1,
            handlelength=1.6,
            columnspacing=1.4,
        )
    return lines


def _width(labels: Sequence[str], lines: int) -> int:
    """Characters in a line of a legend, which is filled column by column."""
    columns = [labels[first : first + lines] for first in range(0, len(labels), lines)]
    return sum(_SYMBOL + max(map(len, column)) for column in columns)


def state_missing(axes: Axes, missing: str) -> None:
    """Write what is missing into an empty panel, the only one of its figure."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, missing, transform=axes.transAxes, ha="center", va="center", color=QUIET)


def calm(axes: Axes) -> None:
    """Remove the lines that a plot does not need."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(color=QUIET, labelsize=9)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
