from pathlib import Path

import pytest
import yaml

from docs.generators import alerts
from docs.generators.tables import Undocumented


def test_every_rule_is_in_the_reference() -> None:
    text = alerts.reference()
    groups = yaml.safe_load(alerts.RULES.read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert f"\n{rule.get('alert') or rule['record']}\n    " in text
    assert "| [DbeliefShardDown](#dbeliefsharddown) | N shard(s) are unavailable" in text
    assert "{{" not in text.partition("```")[0]


def test_a_missing_summary_is_refused(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rule = {"alert": "Silent", "expr": "1", "labels": {"severity": "warning"}}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": [rule]}]}))
    with pytest.raises(Undocumented, match="alert Silent has no description"):
        alerts.reference(rules)
