"""Marks on the curves of a run: members that failed, joined or left, restarts, and the end of the warm start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from .plot_style import BLUE, ORANGE, QUIET

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
