"""`sweep.png`: the criterion of a sweep over its grid; a line over one field, a table of colours over several."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from dbelief.tools.report.plot_style import BLUE, DARK, ORANGE, QUIET, add_legend, calm, new_panel

from .grid import SEED, short_names
from .rows import DONE, BestSettings, Criteria, RunRow, best_of

_LOG_SPAN = 8.0
"""Values that span at least this factor stand on a logarithmic axis."""
_CELL, _MARGIN = 0.42, 1.6
"""Height of a line of cells, and of what is above and below them, in inches."""


@dataclass(frozen=True)
class _Cell:
    """Results of all seeds at one combination: values of the criterion, and the number of runs without one."""

    values: list[float]
    failed: int

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values and not self.failed else None


def draw_grid(rows: Sequence[RunRow], path: Path, title: str, criteria: Criteria | None = None) -> bool:
    """Draw the grid of a sweep.

    Parameters
    ----------
    rows
        Of completed and failed runs.
    path
        The PNG file.
    title
        Title above the grid.
    criteria
        Figures by which settings are compared; None: see `best_of`.

    Returns
    -------
    bool
        False, and no file, where nothing can be compared, or no field but the seed has several values.
    """
    best = best_of(rows) if criteria is None else best_of(rows, criteria)
    fields = _varied(rows)
    if best is None or not fields:
        return False
    caption = f"{best.by.replace('_', ' ')}, mean of seeds" if len(best.runs) > 1 else best.by.replace("_", " ")
    (_draw_table if len(fields) > 1 else _draw_line)(rows, fields, best, path, title, caption)
    return True


def _varied(rows: Sequence[RunRow]) -> list[str]:
    """The fields, except the seed, that have several values."""
    fields = rows[0].settings if rows else {}
    return [field for field in fields if field != SEED and len({row.settings[field] for row in rows}) > 1]


def _cells(rows: Sequence[RunRow], fields: Sequence[str], by: str) -> dict[tuple[str, ...], _Cell]:
    """Cell by the values of the fields, in the order of the grid."""
    groups: dict[tuple[str, ...], list[RunRow]] = {}
    for row in rows:
        groups.setdefault(_key(row.settings, fields), []).append(row)
    scale = 100.0 if by.endswith("accuracy") else 1.0
    found = {}
    for key, group in groups.items():
        values = [row.value(by) for row in group if row.state == DONE]
        numbers = [scale * value for value in values if value is not None]
        found[key] = _Cell(numbers, len(group) - len(numbers))
    return found


def _key(settings: Mapping[str, str], fields: Sequence[str]) -> tuple[str, ...]:
    return tuple(settings[field] for field in fields)


def _unit(by: str) -> str:
    return " (%)" if by.endswith("accuracy") else ""


def _draw_line(
    rows: Sequence[RunRow], fields: list[str], best: BestSettings, path: Path, title: str, caption: str
) -> None:
    """Means over one field, joined by a line; each seed is a point, and values with a failed run are marked below."""
    figure, axes = new_panel(title, 4.4, "")
    cells = {key[0]: cell for key, cell in _cells(rows, fields, best.by).items()}
    places = _places(axes, list(cells))
    for value, cell in cells.items():
        axes.plot([places[value]] * len(cell.values), cell.values, ".", color=QUIET, zorder=2)
    drawn = sorted((places[value], cell.mean) for value, cell in cells.items() if cell.mean is not None)
    axes.plot([at for at, _ in drawn], [mean for _, mean in drawn], "o-", color=BLUE, label=caption, zorder=3)
    chosen = _key(best.settings, fields)[0]
    axes.plot(
        [places[chosen]],
        [statistics.fmean(cells[chosen].values)],
        "D",
        color=ORANGE,
        markersize=9,
        label=f"best: {chosen}",
        zorder=4,
    )
    failed = [places[value] for value, cell in cells.items() if cell.failed]
    if failed:
        top = axes.get_xaxis_transform()
        axes.plot(failed, [0.03] * len(failed), "x", color=ORANGE, transform=top, label="a run failed", zorder=4)
    axes.set_xlabel(fields[0])
    axes.set_ylabel(best.by.replace("_", " ") + _unit(best.by))
    calm(axes)
    add_legend(axes)
    figure.savefig(path, format="png")


def _places(axes: Axes, values: list[str]) -> dict[str, float]:
    """Position of each value: as a number, on a logarithmic axis where they span much; else in their order."""
    try:
        places = {value: float(value) for value in values}
    except ValueError:
        places = {value: float(place) for place, value in enumerate(values)}
    low, high = min(places.values()), max(places.values())
    if low > 0 and high >= _LOG_SPAN * low:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(places.values())))
    axes.xaxis.set_minor_locator(NullLocator())
    labels = sorted(values, key=places.__getitem__)
    axes.set_xticklabels(labels)
    return places


def _draw_table(
    rows: Sequence[RunRow], fields: list[str], best: BestSettings, path: Path, title: str, caption: str
) -> None:
    """A cell for each combination: the last field across, combinations of the others down."""
    cells = _cells(rows, fields, best.by)
    across = _in_order(key[-1] for key in cells)
    down = list(dict.fromkeys(key[:-1] for key in cells))
    means = np.full((len(down), len(across)), np.nan)
    for key, cell in cells.items():
        if cell.mean is not None:
            means[down.index(key[:-1]), across.index(key[-1])] = cell.mean
    figure, axes = new_panel(title, _MARGIN + _CELL * len(down), caption + _unit(best.by))
    colours = "viridis" if best.higher else "viridis_r"
    image = axes.imshow(means, cmap=colours, aspect="auto")
    shades = np.asarray(image.norm(means))
    for row, column in np.ndindex(means.shape):
        text, colour = _written(cells.get((*down[row], across[column])), float(shades[row, column]), best)
        axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
    chosen = _key(best.settings, fields)
    corner = across.index(chosen[-1]) - 0.5, down.index(chosen[:-1]) - 0.5
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=ORANGE, linewidth=3, label="best", clip_on=False))
    short = short_names(fields)
    axes.set_xticks(range(len(across)), across)
    axes.set_yticks(range(len(down)), [", ".join(values) for values in down])
    axes.set_xlabel(fields[-1])
    axes.set_ylabel(fields[0] if len(fields) == 2 else ", ".join(short[field] for field in fields[:-1]))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    add_legend(axes)
    figure.savefig(path, format="png")


def _in_order(values: Iterable[str]) -> list[str]:
    """Different values: numbers by size, others as they come."""
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def _written(cell: _Cell | None, shade: float, best: BestSettings) -> tuple[str, str]:
    """Text of a cell and its colour, which must be readable on the cell's."""
    if cell is None or cell.mean is None:
        return ("" if cell is None else "failed"), DARK
    dark = shade < 0.6 if best.higher else shade > 0.4
    return (f"{cell.mean:.2f}" if best.by.endswith("accuracy") else f"{cell.mean:.4g}"), "white" if dark else DARK
