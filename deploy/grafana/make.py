"""Generator of the Grafana dashboards: boards/*.yaml describes the panels, this file adds Grafana's settings.

`make dashboards` writes dashboards/*.json. In a board, the key `number`, `lines` or `heat` selects the kind of a panel,
and its value is the title. `queries` maps the names of its lines to PromQL (`{{label}}` is replaced by the label's
value). The other keys are arguments of the function of that kind below. A query that may have no series, for example on
a machine without a GPU, ends in `or vector(0)`: a 0 without a name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

import yaml

HERE = Path(__file__).parent

WINDOW = "$__rate_interval"
"""Grafana variable for a rate window that suits the graph's width; `[]` in a query is replaced by `[WINDOW]`."""

WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "prometheus"}
_SIZES = {"stat": (4, 4), "timeseries": (12, 8), "heatmap": (12, 8)}
"""Columns and rows of a panel."""

Queries = Mapping[str, str]
"""PromQL by the names of its lines."""


@dataclass(frozen=True)
class Panel:
    """One panel; `field` and `options` in Grafana's format."""

    kind: Literal["stat", "timeseries", "heatmap"]
    title: str
    description: str
    queries: Queries
    field: dict[str, Any]
    options: dict[str, Any]

    def json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Entry of the panel in the dashboard's file, at this position."""
        width, height = _SIZES[self.kind]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": _SOURCE,
            "gridPos": {"h": height, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": self.field, "overrides": []},
            "options": self.options,
            "targets": [self._target(*one) for one in zip(ascii_uppercase, self.queries.items(), strict=False)],
        }

    def _target(self, letter: str, query: tuple[str, str]) -> dict[str, Any]:
        form = {"format": "heatmap"} if self.kind == "heatmap" else {}
        name, expr = query[0], query[1].replace("[]", f"[{WINDOW}]")
        return {"refId": letter, "datasource": _SOURCE, "expr": expr, "legendFormat": name, **form}


def number(
    title: str,
    description: str,
    queries: Queries,
    unit: str = "none",
    decimals: int | None = None,
    shows: Literal["auto", "name", "value_and_name"] = "auto",
) -> Panel:
    """Panel of the newest value of a query, in large type."""
    field: dict[str, Any] = {"unit": unit, "color": {"mode": "fixed", "fixedColor": "text"}}
    if decimals is not None:
        field["decimals"] = decimals
    options = {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
        "orientation": "auto",
        "textMode": shows,
        "colorMode": "value",
        "graphMode": "none" if shows == "name" else "area",
        "justifyMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }
    return Panel("stat", title, description, queries, field, options)


def lines(
    title: str,
    description: str,
    queries: Queries,
    unit: str = "short",
    logarithmic: bool = False,
    stacked: bool = False,
) -> Panel:
    """Panel of queries over time; `stacked`: shares that add up to 1."""
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0}
    if logarithmic:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    custom |= {"showPoints": "never", "spanNulls": True}
    field: dict[str, Any] = {"unit": unit, "custom": custom}
    if stacked:
        custom |= {"lineWidth": 0, "fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
        field |= {"min": 0, "max": 1}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel("timeseries", title, description, queries, field, options)


def heat(title: str, description: str, queries: Queries) -> Panel:
    """Panel of a histogram's buckets over time."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "steps": 64,
            "exponent": 0.5,
            "fill": "dark-orange",
            "reverse": False,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "none"},
    }
    field = {"custom": {"scaleDistribution": {"type": "linear"}}}
    return Panel("heatmap", title, description, queries, field, options)


_KINDS: Mapping[str, Callable[..., Panel]] = {"number": number, "lines": lines, "heat": heat}


def _panel(panel: dict[str, Any]) -> Panel:
    (kind,) = panel.keys() & _KINDS.keys()
    return _KINDS[kind](panel.pop(kind), **panel)


@dataclass(frozen=True)
class Board:
    """Dashboard: rows of panels, each with a heading; "" for none."""

    name: str
    description: str
    rows: Sequence[tuple[str, Sequence[Panel]]]

    @classmethod
    def read(cls, file: Path) -> Board:
        """Board that a file describes."""
        board = yaml.safe_load(file.read_text())
        rows = [(row["heading"], [_panel(panel) for panel in row["panels"]]) for row in board["rows"]]
        return cls(file.stem, board["description"], rows)

    def text(self) -> str:
        """Content of its file, with one panel per line."""
        head = {
            "uid": f"dbelief-{self.name}",
            "title": f"dbelief: {self.name.capitalize()}",
            "description": self.description,
            "tags": ["dbelief"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "browser",
            "refresh": "5s",
            "time": {"from": "now-15m", "to": "now"},
            "fiscalYearStartMonth": 0,
            "weekStart": "",
            "links": [_LINK],
            "annotations": {"list": []},
            "templating": {"list": []},
        }
        fields = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        panels = ",\n".join(f"    {json.dumps(panel)}" for panel in self._placed())
        return "{\n" + ",\n".join(fields) + f',\n  "panels": [\n{panels}\n  ]\n}}\n'

    def _placed(self) -> Iterator[dict[str, Any]]:
        """Panels with their positions: left to right, then the next line."""
        y = count = 0
        for heading, panels in self.rows:
            if heading:
                count += 1
                yield {
                    "id": count,
                    "type": "row",
                    "title": heading,
                    "collapsed": False,
                    "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
                    "panels": [],
                }
                y += 1
            x = height = 0
            for panel in panels:
                count += 1
                width, tall = _SIZES[panel.kind]
                if x + width > WIDTH:
                    x, y = 0, y + height
                yield panel.json(count, x, y)
                x, height = x + width, tall
            y += height


_LINK = {
    "type": "dashboards",
    "tags": ["dbelief"],
    "title": "dbelief",
    "asDropdown": False,
    "icon": "external link",
    "includeVars": False,
    "keepTime": True,
    "targetBlank": False,
    "tooltip": "the other dashboards, at the same time",
    "url": "",
}


def boards() -> list[Board]:
    """All boards, sorted by file name."""
    return [Board.read(file) for file in sorted((HERE / "boards").glob("*.yaml"))]


def main() -> None:
    """Write the dashboard files."""
    for board in boards():
        (HERE / "dashboards" / f"{board.name}.json").write_text(board.text())


if __name__ == "__main__":
    main()
