"""Deduplication of the replicas' progress reports: cumulative totals, possibly repeated, become increments.

No clock, no socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.messages import ProgressReport
from ..core.tracked import TrackedDict
from .leases import Leases


class ReportDeduplicator:
    """The last reported totals.

    Attributes
    ----------
    of_lease, of_client
        By lease, and by incarnation of a client, which has no lease. Neither lease ids nor incarnations are reused.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.of_lease: TrackedDict[int, ProgressReport] = TrackedDict()
        self.of_client: TrackedDict[int, ProgressReport] = TrackedDict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator."""
        self.of_lease = TrackedDict({fields["lease"]: ProgressReport(**fields) for fields in state["of_lease"]})
        self.of_client = TrackedDict({key: ProgressReport(**fields) for key, fields in state["of_client"]})

    def clients(self) -> set[int]:
        """Incarnations of clients that have reported."""
        return set(self.of_client)

    def pushes_of_client(self, incarnation: int) -> int:
        """Pushes that an incarnation of a client has reported as acknowledged; 0 for a replica."""
        return self.of_client[incarnation].pushes if incarnation in self.of_client else 0

    def settle(self, incarnation: int) -> None:
        """Drop the totals of an incarnation that sends no more reports, and of leases no longer outstanding."""
        self.of_client.pop(incarnation, None)
        for lease in self.of_lease.keys() - self._leases.outstanding.keys():
            del self.of_lease[lease]

    def delta(self, incarnation: int, report: ProgressReport) -> ProgressReport | None:
        """Increment since this incarnation's last report; None for a duplicate, or a lease that it does not hold."""
        held = self._leases.outstanding.get(report.lease)
        if report.lease and (held is None or held.incarnation != incarnation):
            return None
        last, key = (self.of_lease, report.lease) if report.lease else (self.of_client, incarnation)
        before = last.get(key, ProgressReport(report.lease))
        if report.pushes <= before.pushes:
            return None
        last[key] = report
        if report.lease:
            self._leases.acknowledge(report.lease, report.pushes)
            if report.lease not in self._leases.outstanding:
                del last[key]
        return report.since(before)
