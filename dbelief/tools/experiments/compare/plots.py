"""Plots of a comparison: test error against wall time and against samples; time to a target against replicas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FormatStrFormatter, NullLocator

from dbelief.monitor.format import plural
from dbelief.tools.report.plot_style import BLUE, DARK, GREEN, ORANGE, QUIET, calm, new_figure

from .record import Record, key_of
from .table import StrategyRow

_COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", DARK, QUIET)
_LINES = ("-", "--", ":")
_POINTS = 200
Axis = Literal["seconds", "samples"]
_AXES: dict[Axis, str] = {"seconds": "seconds since training began", "samples": "samples"}


def draw_comparison(
    records: Sequence[Record], rows: Sequence[StrategyRow], targets: Sequence[float], folder: Path, name: str
) -> list[Path]:
    """Draw all plots into a folder; return the files."""
    made = []
    for wait_s in dict.fromkeys(row.wait_s for row in rows):
        some = [record for record in records if record.wait_s == wait_s and record.curve]
        title = name + (f", {1000 * wait_s:g} ms of waiting added to each computation" if wait_s else "")
        for axis in _AXES:
            if some:
                made.append(folder / f"error-by-{axis}-{wait_s:g}.png")
                _draw_error(some, targets, axis, made[-1], title)
        reached = any(row.reached[key_of(targets[-1])].runs for row in rows if row.wait_s == wait_s)
        if reached and len({row.replicas for row in rows}) > 1:
            made.append(folder / f"time-by-replicas-{wait_s:g}.png")
            _draw_time([row for row in rows if row.wait_s == wait_s], targets[-1], made[-1], title)
    return made


def _draw_error(records: Sequence[Record], targets: Sequence[float], axis: Axis, path: Path, title: str) -> None:
    groups: dict[str, list[Record]] = {}
    several = len({record.replicas for record in records}) > 1
    for record in records:
        name = f"{record.label}, {plural(record.replicas, 'replica')}" if several else record.label
        groups.setdefault(name, []).append(record)
    figure = new_figure(title, 6.0)
    axes = figure.subplots()
    for style, (name, group) in zip(_styles(), groups.items(), strict=False):
        at, errors = _errors(group, axis)
        axes.plot(at, 100 * np.median(errors, axis=0), label=name, linewidth=1.6, **style)
        if len(group) > 1:
            low, high = 100 * errors.min(axis=0), 100 * errors.max(axis=0)
            axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    _set_errors(axes)
    for target in targets:
        if 100 * (1 - target) > axes.get_ylim()[0]:
            axes.axhline(100 * (1 - target), color=QUIET, linestyle=(0, (1, 2)), linewidth=1.2)
    axes.set_xlim(left=0)
    seeds = len({record.seed for record in records})
    axes.set_ylabel("test error (%)" + (f", median and range of {seeds} seeds" if seeds > 1 else ""))
    axes.set_xlabel(_AXES[axis])
    if axis == "samples":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _add_legend(figure)
    calm(axes)
    figure.savefig(path, format="png")


def _add_legend(figure: Figure) -> None:
    """Add a legend below the axes, where no curve can be."""
    figure.legend(loc="outside lower left", frameon=False, fontsize=9, ncols=3)


def _styles() -> Iterator[dict[str, Any]]:
    """Distinguishable line styles."""
    return itertools.cycle([{"linestyle": line, "color": colour} for line in _LINES for colour in _COLOURS])


def _errors(records: Sequence[Record], axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Positions (n,), and the error of each seed there (seeds, n), up to the end of the shortest run."""
    curves = [
        (np.array([getattr(point, axis) for point in record.curve]), np.array([1 - p.accuracy for p in record.curve]))
        for record in records
    ]
    at = np.linspace(max(places[0] for places, _ in curves), min(places[-1] for places, _ in curves), _POINTS)
    # Linear interpolation on the logarithmic axis; an error of 0, which it cannot show, is clamped.
    logs = [np.interp(at, places, np.log(np.maximum(values, 1e-5))) for places, values in curves]
    return at, np.exp(logs)


def _set_errors(axes: Axes) -> None:
    low, high = axes.get_ylim()
    ticks = [value for value in (0.1, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100) if low <= value <= high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))


def _draw_time(rows: Sequence[StrategyRow], target: float, path: Path, title: str) -> None:
    """Draw seconds to the last target against replicas; strategies that never reach it are named below."""
    figure = new_figure(title, 5.0)
    axes = figure.subplots()
    for style, label in zip(_styles(), dict.fromkeys(row.label for row in rows), strict=False):
        own = {row.replicas: row.reached[key_of(target)] for row in rows if row.label == label}
        there = sorted((replicas, found.seconds) for replicas, found in own.items() if found.seconds is not None)
        name = label if there else f"{label}: never"
        at, seconds = [replicas for replicas, _ in there], [seconds for _, seconds in there]
        axes.plot(at, seconds, label=name, marker="o", linewidth=1.6, **style)
        for replicas, found in own.items():
            if found.quickest is not None and found.slowest is not None:
                axes.plot([replicas] * 2, [found.quickest, found.slowest], color=style["color"], linewidth=0.9)
    ticks = sorted({row.replicas for row in rows})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FormatStrFormatter("%d"))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("replicas")
    axes.set_ylabel(f"seconds to {100 * target:g} %, median and range of seeds")
    _add_legend(figure)
    calm(axes)
    figure.savefig(path, format="png")
