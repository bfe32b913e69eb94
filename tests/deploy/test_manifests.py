"""Dashboards and rules, against each other and against the programs; nothing is started."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dbelief.telemetry.metric_specs import TABLE
from tests.deploy.dashboard import DEPLOY, FILES, expressions, panels, rules

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCRAPED: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())


def _names() -> set[str]:
    """Every name in Prometheus that TABLE makes."""
    endings = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        f"dbelief_{role}_{row.name}{ending}"
        for role, rows in TABLE.items()
        for row in rows
        for ending in endings[row.kind]
    }


def _asked(expressions: Iterable[str]) -> set[str]:
    return {name for one in expressions for name in re.findall(r"\bdbelief_\w+", one)}


def _shown() -> set[str]:
    """All metrics that some dashboard shows."""
    return _asked(one for several in expressions().values() for one in several)


def test_dashboards_and_rules_query_only_known_metrics() -> None:
    assert len(_shown()) > 50
    assert _shown() <= _names()
    assert _asked(rule["expr"] for kind in ("alert", "record") for rule in rules(kind)) <= _names()


def test_all_that_processes_tell_is_shown_somewhere() -> None:
    families = {f"dbelief_{role}_{row.name}" for role, rows in TABLE.items() for row in rows}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _shown()}
    assert families - shown == {
        "dbelief_ps_segments",  # parameters say it
        "dbelief_coordinator_snapshot_interval_seconds",  # of rules
    }


def test_recorded_names_are_recorded_by_some_rule() -> None:
    recorded = {rule["record"] for rule in rules("record")}
    used = {name for rule in rules("alert") + rules("record") for name in re.findall(r"\bdbelief:[\w:]+", rule["expr"])}
    assert used <= recorded


def test_every_alert_has_a_runbook_section_and_tests() -> None:
    book = (DEPLOY.parent / "docs" / "reference" / "alerts.md").read_text()
    sections = re.findall(r"^## (\w+)$", book, re.MULTILINE)
    named = {rule["alert"]: rule for rule in rules("alert")}
    assert sections == list(named)
    for name, rule in named.items():
        assert rule["annotations"]["runbook"] == f"docs/reference/alerts.md#{name.lower()}"
        section = book.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for part in ("**Means.**", "**Lost.**", "**Do.**"):
            assert part in section, f"{name} lacks {part}"
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())["tests"]
    tried = [
        (one["alertname"], bool(one.get("exp_alerts"))) for test in tests for one in test.get("alert_rule_test", [])
    ]
    assert set(tried) == {(name, fires) for name in named for fires in (True, False)}


@pytest.mark.parametrize("name", ["prometheus.yml", "by-hand.yml"])
def test_every_prometheus_is_given_the_rules(name: str) -> None:
    assert yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["rule_files"] == ["rules.yml"]


def test_dashboards_match_their_boards() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import make; print([(b.name, b.text()) for b in make.boards()])"],
        cwd=DEPLOY / "grafana",
        capture_output=True,
        text=True,
        check=True,
    )
    described = dict(ast.literal_eval(done.stdout))
    assert {file.stem: file.read_text() for file in FILES} == described, "run `make dashboards`"
    assert list(described) == ["faults", "job", "shards", "workers"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_panels_fill_a_grid_without_overlap(file: Path) -> None:
    cells = [
        (x, y)
        for panel in panels(file)
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_dashboard_source_is_provisioned() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/job.yaml").read_text())["providers"]
    assert {panel["datasource"]["uid"] for file in FILES for panel in panels(file)} == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == SCRAPED["global"]["scrape_interval"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert {"/etc/grafana/provisioning", provider["options"]["path"]} == set(mounted)
