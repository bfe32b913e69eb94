"""Leases for replicas that run free of each other (`staleness: null`): the next range of data, at any time."""

from __future__ import annotations

from collections.abc import Collection

from dbelief.core.lease import DataLease

from ..core.messages import Wants, WorkRequest
from ..core.warm_start import WarmStart
from .lease_pacing import LeasePacing
from .leases import Leases
from .sync_policy import SyncPolicy


class FreeRunningPolicy(SyncPolicy):
    """Grants leases as they are requested; during the warm start to one replica only."""

    def __init__(self, leases: Leases, warm_start: WarmStart, pacing: LeasePacing | None = None) -> None:
        self._leases = leases
        self._warm_start = warm_start
        self._pacing = pacing

    def held(self, request: WorkRequest) -> DataLease | None:
        """See `SyncPolicy.held`."""
        return self._leases.find_granted(request.incarnation, request.last_lease)

    def request_lease(self, request: WorkRequest, living: Collection[int], now_s: float) -> DataLease | None:
        """See `SyncPolicy.request_lease`."""
        if not self._warm_start.admits(request.incarnation):
            return None
        leases, incarnation, size = self._leases, request.incarnation, None
        if self._pacing is not None:
            size = self._pacing.samples(incarnation, len(living), leases.left, now_s)
        room = self._warm_start.room(leases.leased, request.wants is Wants.TRAINING)
        lease = leases.grant(request.replica, incarnation, room, size=size, in_blocks=True)
        if self._pacing is not None and lease is not None:
            self._pacing.granted(incarnation, lease.samples, now_s)
        return lease

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """See `SyncPolicy.replica_lost`: another replica may train alone now."""
        self._warm_start.remove(incarnation)
        if self._pacing is not None:
            self._pacing.forget(incarnation)
