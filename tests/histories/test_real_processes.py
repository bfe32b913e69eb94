"""Histories of real processes, one of each kind of fault, have no anomaly; the long run is `make histories`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checker import check
from .guarantees import violations
from .plan import Plan
from .run import BUCKETS, SEGMENTS, record

pytestmark = [pytest.mark.processes, pytest.mark.long]

CALLS = 1600


@pytest.mark.parametrize("number", [*range(7), 8, 11, 16], ids=lambda number: str(Plan.of(number)).replace(" ", "-"))
def test_no_anomaly(number: int, tmp_path: Path) -> None:
    plan = Plan.of(number)
    recorded = record(plan, tmp_path, CALLS)
    verdicts = check(recorded.lines)
    assert len(verdicts) == SEGMENTS + BUCKETS * plan.tables
    last = [line["read"] for line in recorded.lines if line.get("read") and line["segment"] == len(verdicts) - 1][-1]
    assert any(last), "calls changed it; numbers of exchanges may all be below zero"
    assert all(verdict.linearizable for verdict in verdicts), verdicts
    assert violations(recorded.lines) == []
    assert recorded.lost == 0
    assert sum(verdict.calls for verdict in verdicts) >= CALLS * SEGMENTS
    assert recorded.faults
