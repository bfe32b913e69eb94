"""Pictures of the measured figures, as SVG, from the same result files as the tables of `measurements`."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dbelief.tools.report.plot_style import BLUE, DARK, GREEN, ORANGE, QUIET, calm

from . import measurements

_TEXT: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dbelief",
    "font.family": "sans-serif",
    "font.size": 10,
}


def replicas() -> Figure:
    """Test accuracy against the number of replicas, with the staleness of each."""
    found = measurements.load("replicas").figures
    rows = [(row, [100 * run["test_accuracy"] for run in _runs(found, row, "replicas")]) for row in found["results"]]
    figure, axes = _new(3.4)
    at = range(len(rows))
    for number, (_, accuracies) in zip(at, rows, strict=True):
        axes.plot([number] * len(accuracies), accuracies, "o", color=BLUE, markersize=7, alpha=0.55)
    medians = [row["median"] for row, _ in rows]
    axes.plot(at, medians, color=ORANGE, marker="D", linewidth=1.5, markersize=6)
    axes.annotate("median", (at[-1], medians[-1]), (10, -3), textcoords="offset points", color=ORANGE)
    axes.set_xticks(at, [f"{row['replicas']}\nstaleness {row['staleness']:.1f}" for row, _ in rows])
    axes.set_xlim(-0.4, len(rows) - 0.4)
    axes.set_xlabel("replicas; mean staleness in versions")
    axes.set_ylabel("test accuracy (%)")
    every = [value for _, accuracies in rows for value in accuracies]
    axes.set_ylim(min(every) - 0.3, max(every) + 0.3)
    return figure


def kills() -> Figure:
    """Test accuracy of every run in which a process was killed."""
    found = measurements.load("kills").figures
    rows = [(row["role"], _runs(found, row, "role")) for row in found["results"]]
    all_accuracies = [
        [100 * run["test_accuracy"] for run in runs if run["test_accuracy"] is not None] for _, runs in rows
    ]
    figure, axes = _new(3.0)
    reference = statistics.median(all_accuracies[0])
    axes.axvline(reference, color=QUIET, linewidth=1.0, linestyle=(0, (4, 3)))
    for number, accuracies in enumerate(all_accuracies):
        axes.plot(accuracies, [number] * len(accuracies), "o", color=_colour(number), markersize=8, alpha=0.6)
    axes.set_yticks(range(len(rows)), [role for role, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_ylabel("process killed")
    every = [value for accuracies in all_accuracies for value in accuracies]
    axes.set_xlim(min(every) - 0.4, max(every) + 0.4)
    axes.set_xlabel("test accuracy (%) of each run; dashed: median without a kill")
    other = axes.secondary_yaxis("right")
    completed = [f"{sum(run['code'] == 0 for run in runs)} of {len(runs)} completed" for _, runs in rows]
    other.set_yticks(range(len(rows)), completed)
    other.spines["right"].set_visible(False)
    other.tick_params(length=0)
    axes.grid(axis="x", color="#E6E6E6")
    return figure


def speed() -> Figure:
    """Milliseconds of a transfer and of a step, beside other libraries."""
    peers, step = measurements.load("peers"), measurements.load("lenet_step").figures
    recipe = peers.tables[""]
    ways = [{**way, "way": (recipe.words or {}).get(way["way"], way["way"])} for way in recipe.rows_of(peers.figures)]
    figure = Figure(figsize=(8.0, 0.42 * (2 * len(ways)) + 1.6), layout="constrained", facecolor="white")
    pull, put, one = figure.subplots(3, 1, height_ratios=[len(ways), len(ways), 2])
    _bars(pull, "pull 64 MiB of parameters", [(way["way"], way.get("pull")) for way in ways])
    stored = [(way["way"], way.get("put", way.get("push"))) for way in ways]  # a push of others only stores
    stored += [(f"{way['way']}, with Adagrad", way.get("push")) for way in ways if "put" in way]
    _bars(put, "store 64 MiB on the other process", stored)
    images = f"LeNet, loss and gradient of {step['batch']} images, one core"
    _bars(one, images, [("dbelief", step["step_ms"]), ("torch", step["torch_ms"])])
    one.set_xlabel("milliseconds, median; shorter is faster")
    return figure


def diloco() -> Figure:
    """Test loss of every run of a way, and how many times fewer bytes than DDP's travel."""
    quality = measurements.load("diloco_quality")
    words = quality.tables[""].words or {}
    means, runs = quality.figures["means"], quality.figures["rows"]
    figure, axes = _new(0.3 * len(means) + 1.0)
    for number, mean in enumerate(means):
        losses = [run["loss"] for run in runs if run["way"] == mean["way"]]
        axes.plot(losses, [number] * len(losses), "o", color=BLUE if mean["fewer"] else DARK, markersize=7, alpha=0.6)
        if mean["way"] in ("ddp", "alone"):
            axes.axvline(mean["loss"], color=QUIET, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(means)), [words.get(mean["way"], mean["way"]).replace("`", "") for mean in means])
    axes.set_ylim(len(means) - 0.5, -0.5)
    axes.set_xlabel("test loss of each run; dashed: DDP, and one learner alone")
    other = axes.secondary_yaxis("right")
    other.set_yticks(range(len(means)), [f"{mean['fewer']:.0f}×" if mean["fewer"] else "–" for mean in means])
    other.set_ylabel("times fewer bytes than DDP")
    other.spines["right"].set_visible(False)
    other.tick_params(length=0)
    axes.grid(axis="x", color="#E6E6E6")
    return figure


PICTURES: Mapping[str, Callable[[], Figure]] = {
    "replicas": replicas,
    "kills": kills,
    "speed": speed,
    "diloco": diloco,
}
"""Drawing functions by the name of the picture: `measured-NAME.svg` in the folder of the site's pictures."""


def svg(name: str) -> str:
    """A picture as an SVG document, the same text for the same result files.

    Raises
    ------
    KeyError
        No function draws a picture of this name.
    """
    with mpl.rc_context(_TEXT):
        buffer = io.StringIO()
        PICTURES[name]().savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _bars(axes: Axes, title: str, rows: list[tuple[str, float | None]]) -> None:
    """One horizontal bar a row, shortest first, with its value at the end."""
    timed = sorted((ms, name) for name, ms in rows if ms is not None)
    names = [name for _, name in timed]
    colours = [BLUE if name.startswith("dbelief") else QUIET for name in names]
    bars = axes.barh(range(len(timed)), [ms for ms, _ in timed], color=colours, height=0.7)
    axes.bar_label(bars, [f"{ms:.1f}" for ms, _ in timed], padding=4, color=DARK)
    axes.set_yticks(range(len(timed)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * timed[-1][0])
    axes.set_title(title, loc="left", fontsize=10, color=DARK)
    calm(axes)
    axes.grid(visible=False)


def _runs(found: Mapping[str, Any], row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Runs of a benchmark that belong to a row of its results."""
    return [run for run in found["runs"] if run[key] == row[key]]


def _new(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.0, height), layout="constrained", facecolor="white")
    axes: Axes = figure.subplots()
    calm(axes)
    return figure, axes


def _colour(number: int) -> str:
    return (DARK, BLUE, ORANGE, GREEN, "#CC79A7")[number % 5]
