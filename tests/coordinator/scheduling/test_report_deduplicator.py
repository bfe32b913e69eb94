"""Reports of totals become increments, in whatever order they arrive."""

from coordinator.core.messages import ProgressReport
from coordinator.scheduling.report_deduplicator import ReportDeduplicator


def test_repeated_and_overtaken_reports_count_nothing() -> None:
    reports = ReportDeduplicator()
    assert reports.delta(1, ProgressReport(pushes=3, samples=30)) == ProgressReport(pushes=3, samples=30)
    for pushes in (3, 2):
        assert reports.delta(1, ProgressReport(pushes=pushes, samples=10 * pushes)) is None
    later = reports.delta(1, ProgressReport(pushes=4, samples=40))
    assert later is not None
    assert (later.pushes, later.samples) == (1, 10)
