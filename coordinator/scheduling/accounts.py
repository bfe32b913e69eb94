"""Deduplication of the replicas' progress reports: cumulative totals, possibly repeated, become increments.

No clock, no socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..core.states import ProgressReport
from .leases import Leases


class ReportDeduplicator:
    """The last reported totals: per lease, and per incarnation of a client, which has no lease.

    Neither lease ids nor incarnations are reused.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._of_lease: dict[int, ProgressReport] = {}
        self._of_client: dict[int, ProgressReport] = {}  # by incarnation

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "of_lease": [asdict(told) for told in self._of_lease.values()],
            "of_client": [[incarnation, asdict(told)] for incarnation, told in self._of_client.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator."""
        self._of_lease = {fields["lease"]: ProgressReport(**fields) for fields in state["of_lease"]}
        self._of_client = {incarnation: ProgressReport(**fields) for incarnation, fields in state["of_client"]}

    def settle(self, incarnation: int) -> None:
        """Drop the totals of an incarnation that sends no more reports, and of leases no longer outstanding."""
        self._of_client.pop(incarnation, None)
        for lease in self._of_lease.keys() - self._leases.outstanding.keys():
            del self._of_lease[lease]

    def delta(self, incarnation: int, told: ProgressReport) -> ProgressReport | None:
        """Increment since this incarnation's last report; None for a duplicate, or a lease that it does not hold."""
        return self._new_of_lease(incarnation, told) if told.lease else self._new_of_client(incarnation, told)

    def _new_of_lease(self, incarnation: int, told: ProgressReport) -> ProgressReport | None:
        held = self._leases.outstanding.get(told.lease)
        before = self._of_lease.get(told.lease, ProgressReport(told.lease))
        if held is None or held.incarnation != incarnation or told.pushes <= before.pushes:
            return None
        self._leases.acknowledge(told.lease, told.pushes)
        self._of_lease[told.lease] = told
        if told.lease not in self._leases.outstanding:
            del self._of_lease[told.lease]
        return told.since(before)

    def _new_of_client(self, incarnation: int, told: ProgressReport) -> ProgressReport | None:
        before = self._of_client.get(incarnation, ProgressReport(0))
        if told.pushes <= before.pushes:
            return None
        self._of_client[incarnation] = told
        return told.since(before)
