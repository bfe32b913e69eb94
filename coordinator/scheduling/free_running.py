"""Leases for replicas that run free of each other (`staleness: null`): the next range of data, at any time."""

from __future__ import annotations

from collections.abc import Collection

from dbelief.core.lease import DataLease

from ..core.messages import WorkRequest
from ..core.warm_start import WarmStart
from .leases import Leases
from .sync_policy import SyncPolicy


class FreeRunningPolicy(SyncPolicy):
    """Grants leases as they are requested; during the warm start to one replica only."""

    def __init__(self, leases: Leases, warm_start: WarmStart) -> None:
        self._leases = leases
        self._warm_start = warm_start

    def held(self, request: WorkRequest) -> DataLease | None:
        """See `SyncPolicy.held`."""
        return self._leases.find_unstarted(request.incarnation, request.next_sequence)

    def request_lease(self, request: WorkRequest, living: Collection[int], now_s: float) -> DataLease | None:
        """See `SyncPolicy.request_lease`."""
        if not self._warm_start.admits(request.incarnation):
            return None
        room = self._warm_start.room(self._leases.leased)
        return self._leases.grant(request.replica, request.incarnation, request.next_sequence, room)

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """See `SyncPolicy.replica_lost`: another replica may train alone now."""
        self._warm_start.remove(incarnation)
