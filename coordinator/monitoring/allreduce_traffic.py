"""Traffic between the workers of a group, from their own reports. No clock, no socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dbelief.job import Reduction


class Edge(NamedTuple):
    """What one rank received from another one (`source`); see `worker.comm.tracing.ReceiveStats`."""

    source: int
    messages: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class WorkerTraffic:
    """Report of one worker: totals since its generation began."""

    replica: int
    generation: int
    rank: int
    ranks: int
    steps: int
    taken: Sequence[Edge]


class Traffic:
    """Reports of the newest group that has made a step; those of earlier groups are dropped.

    Parameters
    ----------
    reduction
        Reduction algorithm of the group.
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._parts: dict[int, WorkerTraffic] = {}  # by rank
        self._generation = 0

    def record(self, part: WorkerTraffic) -> dict[str, Any] | None:
        """Record a report; returns the contents of `reduction.json`, or None until all ranks have reported."""
        if part.generation < self._generation:
            return None
        if part.generation > self._generation:
            self._generation, self._parts = part.generation, {}
        self._parts[part.rank] = part
        if len(self._parts) < part.ranks:
            return None
        parts = [self._parts[rank] for rank in range(part.ranks)]
        return {
            "generation": self._generation,
            **self._reduction.model_dump(),
            "workers": [{"replica": one.replica, "steps": one.steps} for one in parts],
            "edges": [{"to": one.rank, **edge._asdict()} for one in parts for edge in one.taken],
        }
