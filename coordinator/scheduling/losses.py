"""Pushes that were acknowledged and that restored shards lack, each counted once. No clock, no socket.

A pusher reports what it lost when it pushes to a restored shard for the first time. Where it fails before it reports
that, or pushes no more, the difference is counted from the ledgers: at its end, at the end of the job, and where the
job is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.ledgers import Applied
from ..core.tracked import TrackedDict
from .leases import Outstanding


class Losses:
    """Lost pushes, as far as they are counted.

    Attributes
    ----------
    counted
        By incarnation; kept while shards have ledger rows of it.
    """

    def __init__(self) -> None:
        self.counted: TrackedDict[int, int] = TrackedDict()

    def report(self, incarnation: int, lost: int) -> None:
        """Record lost pushes that an incarnation has reported, and that are counted with its report."""
        if lost:
            self.counted[incarnation] = self.counted.get(incarnation, 0) + lost

    def count(self, incarnation: int, reached: int, applied: Applied) -> int:
        """Lost pushes of an incarnation that are not counted yet; they are from now on.

        Parameters
        ----------
        reached
            Number of its last push that is known to be acknowledged, and that is not trained again.
        """
        lost = applied.lost + max(0, reached - applied.lowest.sequence)
        newly = max(0, lost - self.counted.get(incarnation, 0))
        self.report(incarnation, newly)
        return newly

    def forget(self, incarnation: int) -> None:
        """Drop an incarnation of which no shard has a ledger row."""
        self.counted.pop(incarnation, None)

    def state(self) -> list[tuple[int, int]]:
        """The complete state, JSON-serialisable."""
        return list(self.counted.items())

    def restore(self, state: list[tuple[int, int]]) -> None:
        """Restore the state of another coordinator, or of a set."""
        self.counted = TrackedDict(dict(state))


def pushed_before(leases: Mapping[str, Any]) -> dict[int, int]:
    """By incarnation, number of its last push before the leases that a set's state returns to the pool.

    `leases`: `Leases.state()`. Every set holds these pushes, unless a shard had lost them: they are not trained again.
    """
    before: dict[int, int] = dict(leases["reached"])
    for held in map(Outstanding.of, leases["held"]):
        before[held.incarnation] = min(before.get(held.incarnation, held.since), held.since)
    return before
