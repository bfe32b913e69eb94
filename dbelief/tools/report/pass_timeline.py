"""`last_pass.png`: which replica computed which bundle of a batch method's last pass, and when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from dbelief.monitor.format import plural, short_time

from .plot_style import BLUE, ORANGE, calm, new_panel, time_scale

_LETTER = 0.62  # approximate width of a digit, relative to its font's height
_FONT = 7.5  # points
_WIDTH = 8.0 * 72 * 0.88  # approximate length of the time axis, points
_MOST_ROWS = 60  # largest number of replicas whose rows have their full height


class BundleRun(NamedTuple):
    """One replica's work on one bundle; times in seconds since the pass began."""

    replica: int
    bundle: int
    first: int
    portions: int
    backup: bool
    start_s: float
    stop_s: float
    won: bool

    @property
    def name(self) -> str:
        """The bundle's portions."""
        return str(self.first) if self.portions == 1 else f"{self.first}–{self.first + self.portions - 1}"


def draw_pass(fields: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw a row for each replica and a bar for each of its bundles, labelled with its portions where they fit.

    Parameters
    ----------
    fields
        Content of `last_pass.json`.
    path
        The PNG file.
    title
        Title above; a description of the pass is below it.
    """
    runs = [BundleRun(*row) for row in fields["runs"]]
    replicas = sorted({run.replica for run in runs})
    figure, axes = new_panel(title, 2.1 + 0.42 * min(max(1, len(replicas)), _MOST_ROWS), _describe(fields))
    end_s = max((run.stop_s for run in runs), default=0.0)
    unit, scale = time_scale(end_s)
    for run in runs:
        _draw_run(axes, run, replicas.index(run.replica), scale, end_s)
    axes.set_xlim(0, scale * end_s * 1.005 or 1.0)
    axes.set_xlabel(f"time since the pass began ({unit})")
    _name_rows(axes, replicas)
    calm(axes)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color="#E6E6E6", linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    kinds = sorted({(run.backup, not run.won) for run in runs})
    figure.legend(
        handles=[_patch(backup, not lost) for backup, lost in kinds],
        loc="outside lower left",
        ncols=2,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path, format="png")


def _describe(fields: Mapping[str, Any]) -> str:
    launched, won = fields["launched"], fields["won"]
    counts = f"{fields['samples']:,} samples in {plural(fields['portions'], 'portion')}"
    backups = plural(launched, "backup") + (f" ({won:,} won)" if launched else "")
    which = f"pass {fields['number']}, of iteration {fields['iteration']}"
    return f"{which}: {short_time(fields['seconds'])}\n{counts}, {plural(fields['bundles'], 'bundle')}, {backups}"


def _look(backup: bool, won: bool) -> dict[str, Any]:
    colour = ORANGE if backup else BLUE
    if won:
        return {"facecolor": colour, "edgecolor": "white", "hatch": "////" if backup else None}
    return {"facecolor": f"{colour}33", "edgecolor": colour, "hatch": "////" if backup else None}


def _patch(backup: bool, won: bool) -> Patch:
    kind = "backup" if backup else "bundle"
    return Patch(
        **_look(backup, won), linewidth=0.5, label=kind if won else f"{kind} that completed too late, or never"
    )


def _draw_run(axes: Axes, run: BundleRun, row: int, scale: float, end_s: float) -> None:
    length_s = run.stop_s - run.start_s
    room = _WIDTH * length_s / end_s if end_s else 0.0  # points
    thin = 0.8 if room > 4 else 0.2
    axes.barh(row, scale * length_s, 0.68, scale * run.start_s, linewidth=thin, **_look(run.backup, run.won))
    if room > _FONT * _LETTER * len(run.name) + (8 if run.backup else 3):
        middle = scale * (run.start_s + run.stop_s) / 2
        colour = "white" if run.won and not run.backup else "black"
        plate = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if run.backup else None
        axes.text(middle, row, run.name, ha="center", va="center", fontsize=_FONT, color=colour, bbox=plate)


def _name_rows(axes: Axes, replicas: list[int]) -> None:
    if len(replicas) <= _MOST_ROWS:
        axes.set_yticks(range(len(replicas)), [f"replica {number}" for number in replicas])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("replicas")
    axes.set_ylim(max(1, len(replicas)) - 0.5, -0.5)  # the first one on top
