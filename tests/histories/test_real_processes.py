"""Histories of real processes, one of each kind of fault, have no anomaly; the long run is `make histories`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checker import check
from .guarantees import violations
from .plan import Plan
from .run import SEGMENTS, record

pytestmark = [pytest.mark.processes, pytest.mark.long]

CALLS = 1600


@pytest.mark.parametrize("number", [*range(7), 11], ids=lambda number: str(Plan.of(number)).replace(" ", "-"))
def test_no_anomaly(number: int, tmp_path: Path) -> None:
    recorded = record(Plan.of(number), tmp_path, CALLS)
    verdicts = check(recorded.lines)
    assert all(verdict.linearizable for verdict in verdicts), verdicts
    assert violations(recorded.lines) == []
    assert recorded.lost == 0
    assert sum(verdict.calls for verdict in verdicts) >= CALLS * SEGMENTS
    assert recorded.faults
