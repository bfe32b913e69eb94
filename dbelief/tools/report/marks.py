"""Marks on the curves of a run: members that failed, joined or left during training, and restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from .plot_style import BLUE, ORANGE, QUIET

FAILED, JOINED, LEFT, RESTARTED = "failed", "joined", "left", "restarted"
_KINDS = {"died": FAILED, "joined": JOINED, "left": LEFT}
_STYLES: Mapping[str, tuple[str, str]] = {
    FAILED: ("X", ORANGE),
    JOINED: ("^", BLUE),
    LEFT: ("v", QUIET),
    RESTARTED: ("D", QUIET),
}
_MOST_NAMES = 2
"""Members that a legend names; of more it has the number."""


class Marks:
    """Positions of membership changes in a run's events.

    Members that join before the first progress, or during the warm start, are the run's own, and those that leave at
    its end have nothing more to do: neither is marked. A position is that of the last progress before the change.
    """

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, str]]] = {kind: [] for kind in _STYLES}
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
            for found in self.found.values():
                found.clear()
        elif kind == "state":
            self._ending = event.get("state") in ("closing", "done", "failed")
        elif kind == "takeover":
            self._add(RESTARTED, "coordinator")
        elif kind == "member" and not self._ending and event.get("role") != "client":
            self._add(_KINDS[event["what"]], f"{event['role']} {event['id']}")

    def draw(self, panels: Sequence[Axes]) -> None:
        """Draw a line through all panels at every change, and its symbol on top of the first."""
        for kind, found in self.found.items():
            if not found:
                continue
            symbol, colour = _STYLES[kind]
            places = [place for place, _ in found]
            for panel in panels:
                for place in places:
                    panel.axvline(place, color=colour, linewidth=0.8, alpha=0.45, zorder=1)
            panels[0].plot(
                places,
                [1.0] * len(places),
                symbol,
                color=colour,
                markersize=6,
                clip_on=False,
                transform=panels[0].get_xaxis_transform(),
                label=self._label(kind),
                zorder=4,
            )

    def _label(self, kind: str) -> str:
        names = [name for _, name in self.found[kind]]
        return f"{kind}: {', '.join(names) if len(names) <= _MOST_NAMES else len(names)}"

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
