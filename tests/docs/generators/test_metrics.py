from dataclasses import replace

import pytest

from dbelief.telemetry.metric_specs import TABLE
from docs.generators import metrics
from docs.generators.tables import Undocumented


def test_every_metric_is_in_the_reference_under_its_role() -> None:
    text = metrics.reference()
    for role, specs in TABLE.items():
        for spec in specs:
            assert f"| `dbelief_{role}_{spec.name}` | " in text
    assert text.count("\n| `dbelief_") == sum(map(len, TABLE.values()))
    assert "| `direction`: `received`, `sent` |" in text


def test_a_missing_description_is_refused() -> None:
    spec = TABLE["ps"][0]
    for silent in (replace(spec, help=""), replace(spec, unit="")):
        with pytest.raises(Undocumented, match="metric x has no description"):
            metrics._row("x", silent)
