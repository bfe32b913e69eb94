"""The dashboard as the tests read it: its panels, and what each asks Prometheus."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILE = DEPLOY / "grafana" / "dashboards" / "job.json"
WINDOW = "$__rate_interval"
"""What Grafana puts a time for that suits the graph's width."""


def panels() -> list[dict[str, Any]]:
    """Every panel but the headings."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions(window: str = WINDOW) -> dict[str, list[str]]:
    """PromQL by the panel's title, with this window."""
    return {
        panel["title"]: [target["expr"].replace(WINDOW, window) for target in panel["targets"]] for panel in panels()
    }


def ask(prometheus: str, expression: str) -> list[float]:
    """The values of an expression's series as of now; an error of Prometheus's is one here too."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}", timeout=10) as answer:
        result = json.load(answer)["data"]["result"]
    return [float(series["value"][1]) for series in result]
