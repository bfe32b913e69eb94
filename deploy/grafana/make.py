"""The dashboards: boards/*.yaml says what is on them, this file what Grafana wants to be told about each panel.

`make dashboards` writes dashboards/*.json. In a board, `number`, `lines` or `heat` names a panel, `tells` describes it,
`asks` has its queries by what their lines are called (`{{label}}` stands for a label's value); the other keys are the
arguments of the function of that name below. A query that may have no series, on a machine without a GPU say, ends in
`or vector(0)`: a 0 without a name.
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
"""What Grafana puts a time for that suits the graph's width; `[]` in a query stands for `[WINDOW]`."""

WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "prometheus"}
_SIZES = {"stat": (4, 4), "timeseries": (12, 8), "heatmap": (12, 8)}
"""Columns and rows of a panel."""

Queries = Mapping[str, str]
"""PromQL by what its lines are called."""


@dataclass(frozen=True)
class Panel:
    """One panel; `field` and `options` as Grafana has them."""

    kind: Literal["stat", "timeseries", "heatmap"]
    title: str
    tells: str
    asks: Queries
    field: dict[str, Any]
    options: dict[str, Any]

    def json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """What the dashboard's file says of it, at this place."""
        width, height = _SIZES[self.kind]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.tells,
            "datasource": _SOURCE,
            "gridPos": {"h": height, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": self.field, "overrides": []},
            "options": self.options,
            "targets": [self._target(*one) for one in zip(ascii_uppercase, self.asks.items(), strict=False)],
        }

    def _target(self, letter: str, query: tuple[str, str]) -> dict[str, Any]:
        form = {"format": "heatmap"} if self.kind == "heatmap" else {}
        name, expr = query[0], query[1].replace("[]", f"[{WINDOW}]")
        return {"refId": letter, "datasource": _SOURCE, "expr": expr, "legendFormat": name, **form}


def number(
    title: str,
    tells: str,
    asks: Queries,
    unit: str = "none",
    decimals: int | None = None,
    shows: Literal["auto", "name", "value_and_name"] = "auto",
) -> Panel:
    """The newest value of a query, large."""
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
    return Panel("stat", title, tells, asks, field, options)


def lines(
    title: str, tells: str, asks: Queries, unit: str = "short", logarithmic: bool = False, whole: bool = False
) -> Panel:
    """Queries over time; `whole`: shares that are stacked up to 1."""
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0}
    if logarithmic:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    custom |= {"showPoints": "never", "spanNulls": True}
    field: dict[str, Any] = {"unit": unit, "custom": custom}
    if whole:
        custom |= {"lineWidth": 0, "fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
        field |= {"min": 0, "max": 1}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel("timeseries", title, tells, asks, field, options)


def heat(title: str, tells: str, asks: Queries) -> Panel:
    """A histogram's buckets over time."""
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
    return Panel("heatmap", title, tells, asks, field, options)


_KINDS: Mapping[str, Callable[..., Panel]] = {"number": number, "lines": lines, "heat": heat}


def _panel(told: dict[str, Any]) -> Panel:
    (kind,) = told.keys() & _KINDS.keys()
    return _KINDS[kind](told.pop(kind), **told)


@dataclass(frozen=True)
class Board:
    """A dashboard: rows of panels, each under a heading; "" for none."""

    name: str
    tells: str
    rows: Sequence[tuple[str, Sequence[Panel]]]

    @classmethod
    def read(cls, file: Path) -> Board:
        """The board that a file describes."""
        told = yaml.safe_load(file.read_text())
        rows = [(row["heading"], [_panel(panel) for panel in row["panels"]]) for row in told["rows"]]
        return cls(file.stem, told["tells"], rows)

    def text(self) -> str:
        """What is in its file: a panel a line."""
        head = {
            "uid": f"dbelief-{self.name}",
            "title": f"dbelief: {self.name.capitalize()}",
            "description": self.tells,
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
        told = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        panels = ",\n".join(f"    {json.dumps(panel)}" for panel in self._placed())
        return "{\n" + ",\n".join(told) + f',\n  "panels": [\n{panels}\n  ]\n}}\n'

    def _placed(self) -> Iterator[dict[str, Any]]:
        """Left to right, and below where there is no room."""
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
    """All of them."""
    return [Board.read(file) for file in sorted((HERE / "boards").glob("*.yaml"))]


def main() -> None:
    """Write the files that Grafana reads."""
    for board in boards():
        (HERE / "dashboards" / f"{board.name}.json").write_text(board.text())


if __name__ == "__main__":
    main()
