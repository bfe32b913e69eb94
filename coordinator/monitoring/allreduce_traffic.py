"""Traffic between the workers of a group, from their own reports. No clock, no socket."""

from __future__ import annotations

from typing import Any

from dbelief.job import Reduction
from dbelief.rpc.pb import coordination_pb2 as wire

_RECEIVED = "messages", "bytes", "seconds"
"""What one rank received from another one; see `worker.comm.tracing.ReceiveStats`."""


class GroupTraffic:
    """Reports of the newest group that has made a step; those of earlier groups are dropped.

    Parameters
    ----------
    reduction
        Reduction algorithm of the group.
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._parts: dict[int, tuple[int, wire.Traffic]] = {}  # by rank: replica and report
        self._generation = 0

    def record(self, replica: int, report: wire.Traffic) -> dict[str, Any] | None:
        """Record a worker's report, totals since its generation began.

        Returns the contents of `reduction.json`, or None until all ranks have reported.
        """
        if report.generation < self._generation:
            return None
        if report.generation > self._generation:
            self._generation, self._parts = report.generation, {}
        self._parts[report.rank] = replica, report
        if len(self._parts) < report.ranks:
            return None
        parts = [self._parts[rank] for rank in range(report.ranks)]
        return {
            "generation": self._generation,
            **self._reduction.model_dump(),
            "workers": [{"replica": replica, "steps": one.steps} for replica, one in parts],
            "edges": [
                {"to": one.rank, "source": edge.rank, **{name: getattr(edge, name) for name in _RECEIVED}}
                for _, one in parts
                for edge in one.received
            ],
        }
