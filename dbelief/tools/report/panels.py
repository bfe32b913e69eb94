"""Panels of a run's curves, one above the other over the same axis, and the marks on them.

Marks are members that failed, joined or left, restarts, and the end of the warm start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from .plot_style import BLUE, ORANGE, QUIET, add_legend, calm, new_figure, state_missing

# Inches around the panels. A layout engine would measure every label, which takes longer than to draw them all, while
# the user waits for the end of the job.
_LEFT, _RIGHT = 0.9, 0.15  # tick labels of seven digits
_LABEL = 0.22  # from the left edge to the labels of the vertical axes
_TITLE, _GAP, _LINE = 0.3, 0.16, 0.19  # _LINE: of a legend
_SCALE = 0.5  # a horizontal axis with its label

FAILED, JOINED, LEFT, RESTARTED = "failed", "joined", "left", "restarted"
_KINDS = {"died": FAILED, "joined": JOINED, "left": LEFT}
_STYLES: Mapping[str, tuple[str, str]] = {
    FAILED: ("X", ORANGE),
    JOINED: ("^", BLUE),
    LEFT: ("v", QUIET),
    RESTARTED: ("D", QUIET),
}
_ROW_IN = 0.13  # distance of symbols at the same place, in inches
_MOST_NAMES = 2
"""Members that a legend names; of more it has the number."""


class Marks:
    """Positions of membership changes in a run's events, and of the end of its warm start (None: it has none).

    Members that join before the first progress, or during the warm start, are the run's own, and those that leave at
    its end have nothing more to do: neither is marked. A position is that of the last progress before the change.
    """

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, str]]] = {kind: [] for kind in _STYLES}
        self.warm_start: float | None = None
        self._at: float | None = None
        self._elapsed_s = 0.0
        self._ending = False

    def take(self, event: Mapping[str, Any], at: float | None) -> None:
        """Add the next event; `at`: the position that it reports, in samples or iterations."""
        self._find_restart(event)
        kind = event.get("event")
        if at is not None:
            self._at = at
        if kind == "warm_start":
            self.warm_start = at
            for found in self.found.values():
                found.clear()
        elif kind == "state":
            self._ending = event.get("state") in ("closing", "done", "failed")
        elif kind == "takeover":
            self._add(RESTARTED, "coordinator")
        elif kind == "member" and not self._ending:
            self._add(_KINDS[event["what"]], f"{event['role']} {event['id']}")

    def draw(self, panels: Sequence[Axes]) -> None:
        """Draw a line through all panels at every place with changes, and a symbol for each kind on top of the first.

        The end of the warm start is a dotted line.

        Symbols at one place stand one below the other, each with the number of its changes there.
        """
        if self.warm_start is not None:
            style: dict[str, Any] = {"color": QUIET, "linestyle": ":", "linewidth": 1.2}
            for panel in panels:
                panel.axvline(self.warm_start, zorder=1, **style)
            panels[0].plot([], [], label="end of the warm start", **style)
        rows: Counter[float] = Counter()
        for kind, found in self.found.items():
            symbol, colour = _STYLES[kind]
            places = Counter(place for place, _ in found)
            for place, changes in places.items():
                for panel in panels:
                    panel.axvline(place, color=colour, linewidth=0.8, alpha=0.45, zorder=1)
                _draw_symbol(panels[0], place, rows[place], symbol, colour, changes)
            rows.update(places.keys())
            if found:
                names = [name for _, name in found]
                panels[0].plot([], [], symbol, color=colour, markersize=6, label=f"{kind}: {_describe(names)}")

    def _find_restart(self, event: Mapping[str, Any]) -> None:
        """A run that was interrupted and resumed appends to the same events: its clock starts again."""
        elapsed_s = event.get("elapsed_s", self._elapsed_s)
        if elapsed_s < self._elapsed_s:
            self._ending = False
            self._add(RESTARTED, "run")
        self._elapsed_s = elapsed_s

    def _add(self, kind: str, name: str) -> None:
        if self._at:
            self.found[kind].append((self._at, name))


def _draw_symbol(axes: Axes, place: float, row: int, symbol: str, colour: str, changes: int) -> None:
    """Draw a symbol in a row, counted from the top of the panel, and the number of changes where it is not 1."""
    inches = cast(Figure, axes.get_figure()).dpi_scale_trans
    below = ScaledTranslation(0, -row * _ROW_IN, inches)
    at = axes.get_xaxis_transform() + below
    axes.plot([place], [1.0], symbol, color=colour, markersize=6, clip_on=False, transform=at, zorder=4)
    if changes > 1:
        beside = at + ScaledTranslation(_ROW_IN / 2, 0, inches)
        style: dict[str, Any] = {"color": colour, "fontsize": 8, "fontweight": "bold", "va": "center", "zorder": 4}
        axes.text(place, 1.0, str(changes), transform=beside, **style)


def _describe(names: Sequence[str]) -> str:
    """Names of the members that changed, or of many their number; with how often, where one changed repeatedly."""
    times = Counter(names)
    if len(times) <= _MOST_NAMES:
        return ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in times.items())
    roles = {name.split()[0] for name in times}
    members = f"{len(times)} {roles.pop() if len(roles) == 1 else 'member'}s"
    return members if len(names) == len(times) else f"{members}, {len(names)} times"


@dataclass(frozen=True)
class Panel:
    """One panel: its height (inches), and the function that draws it."""

    height: float
    draw: Callable[[Axes], None]


def draw_panels(panels: Sequence[Panel], title: str, marks: Marks, missing: str, scales: int = 1) -> list[Axes]:
    """Draw panels with marks and legends; without any panel, one that states `missing`.

    Parameters
    ----------
    scales
        Horizontal axes below the last panel for which there is room.

    Returns
    -------
    list of Axes
        From top to bottom.
    """
    heights = [panel.height for panel in panels] or [2.0]
    figure = new_figure(title, 0.6 + sum(heights), layout=None)
    drawn = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False)[:, 0])
    for panel, axes in zip(panels, drawn, strict=False):
        panel.draw(axes)
        calm(axes)
    if panels:
        marks.draw(drawn)
    else:
        state_missing(drawn[0], missing)
    for axes in drawn[:-1]:
        axes.xaxis.set_visible(False)  # it is that of the last panel; tick marks are half the cost of a drawing
    legends = [_GAP + _LINE * max(1, add_legend(axes)) for axes in drawn]
    _place(figure, drawn, heights, legends, _SCALE * scales)
    return drawn


def _place(
    figure: Figure, panels: Sequence[Axes], heights: Sequence[float], above: Sequence[float], below: float
) -> None:
    """Set the places of panels of some relative heights, and of the labels of their vertical axes.

    Parameters
    ----------
    above, below
        Inches above each panel, and below the last.
    """
    width, height = figure.get_size_inches()
    top = height - _TITLE
    free = top - sum(above) - below
    for axes, share, legend in zip(panels, heights, above, strict=True):
        inside = free * share / sum(heights)
        top -= legend + inside
        axes.set_position((_LEFT / width, top / height, 1 - (_LEFT + _RIGHT) / width, inside / height))
        along = blended_transform_factory(figure.dpi_scale_trans, axes.transAxes)
        axes.yaxis.set_label_coords(_LABEL, 0.5, transform=along)


def figure_of(axes: Axes) -> Figure:
    """The figure of a panel."""
    return cast(Figure, axes.get_figure())
