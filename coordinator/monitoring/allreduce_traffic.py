"""Who of a group of workers took how much from whom, out of what each of them tells. No clock, no socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dbelief.job import Reduction


class Edge(NamedTuple):
    """What one rank took from another one (`source`); see `worker.comm.tracing.ReceiveStats`."""

    source: int
    messages: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class WorkerTraffic:
    """What one worker tells: totals since its generation began."""

    replica: int
    generation: int
    rank: int
    ranks: int
    steps: int
    taken: Sequence[Edge]


class Traffic:
    """What workers told of the newest group that has made a step; earlier ones are forgotten.

    Parameters
    ----------
    reduction
        How they sum.
    """

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._parts: dict[int, WorkerTraffic] = {}  # by rank
        self._generation = 0

    def record(self, part: WorkerTraffic) -> dict[str, Any] | None:
        """What is known now, as `reduction.json` holds it; None as long as not all of the group have told."""
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
