"""Reference of the alerts, from the rules of Prometheus."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from .tables import plain, required, table

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"


def reference(rules: Path = RULES) -> str:
    """Alerts with summary, severity and duration, then their conditions and the recorded expressions.

    Raises
    ------
    Undocumented
        An alert has no summary or no severity.
    """
    found: list[dict[str, Any]] = [
        rule for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]
    ]
    alerts = [_alert(rule) for rule in found if "alert" in rule]
    return "\n".join(
        [
            table(("alert", "summary", "severity", "for"), alerts),
            "The conditions:\n",
            _expressions(found, "alert"),
            "Expressions that are recorded for alerts and dashboards:\n",
            _expressions(found, "record"),
        ]
    )


def _alert(rule: dict[str, Any]) -> tuple[str, ...]:
    name = rule["alert"]
    severity = required(rule.get("labels", {}).get("severity"), f"severity of alert {name}")
    summary = plain(re.sub(r"{{.*?}}", "N", required(rule.get("annotations", {}).get("summary"), f"alert {name}")))
    return f"[{name}](#{name.lower()})", summary, severity, rule.get("for", "0s")


def _expressions(rules: list[dict[str, Any]], kind: str) -> str:
    shown = [f"{rule[kind]}\n{indent(rule['expr'].strip(), '    ')}" for rule in rules if kind in rule]
    return "\n".join(["```text", *shown, "```", ""])
