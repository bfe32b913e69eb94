"""Deduplication of the members' progress reports: cumulative totals, possibly repeated, become increments.

No clock, no socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.messages import ProgressReport
from ..core.tracked import TrackedDict


class ReportDeduplicator:
    """The last reported totals.

    Attributes
    ----------
    last
        By incarnation, which are not reused.
    """

    def __init__(self) -> None:
        self.last: TrackedDict[int, ProgressReport] = TrackedDict()

    def restore(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Restore the state of another coordinator: the fields of each incarnation's report."""
        self.last = TrackedDict({incarnation: ProgressReport(**fields) for incarnation, fields in state.items()})

    def settle(self, incarnation: int) -> None:
        """Drop the totals of an incarnation that sends no more reports."""
        self.last.pop(incarnation, None)

    def delta(self, incarnation: int, report: ProgressReport) -> ProgressReport | None:
        """Increment since this incarnation's last report; None for a duplicate."""
        before = self.last.get(incarnation, ProgressReport())
        if report.pushes <= before.pushes:
            return None
        self.last[incarnation] = report
        return report.since(before)
