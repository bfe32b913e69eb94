"""The dashboards as the tests read them: their panels, and what each asks Prometheus; the rules likewise."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
RULES = DEPLOY / "prometheus" / "rules.yml"
WINDOW = "$__rate_interval"
"""What Grafana puts a time for that suits the graph's width."""


def panels(file: Path) -> list[dict[str, Any]]:
    """Every panel but the headings."""
    found: list[dict[str, Any]] = json.loads(file.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions(window: str = WINDOW) -> dict[tuple[str, str], list[str]]:
    """PromQL by the dashboard's name and the panel's title, with this window."""
    return {
        (file.stem, panel["title"]): [target["expr"].replace(WINDOW, window) for target in panel["targets"]]
        for file in FILES
        for panel in panels(file)
    }


def rules(kind: str) -> list[dict[str, Any]]:
    """The rules of a kind, "alert" or "record"."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def ask(prometheus: str, expression: str) -> list[float]:
    """The values of an expression's series as of now; an error of Prometheus's is one here too."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}", timeout=10) as answer:
        result = json.load(answer)["data"]["result"]
    return [float(series["value"][1]) for series in result]
