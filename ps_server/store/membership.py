"""Who takes part in which clock of the staleness dial."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field


@dataclass
class Membership:
    """Who takes part in which clock: (first clock, replica numbers) by rising clock."""

    member_epoch: int = 0
    rounds: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    def at(self, clock: int) -> frozenset[int]:
        """Replica numbers that take part in `clock`."""
        row = bisect.bisect_right(self.rounds, clock, key=lambda row: row[0]) - 1
        return self.rounds[row][1] if row >= 0 else frozenset()

    def goes_on_after(self, clock: int) -> bool:
        """Whether a later clock has members."""
        return any(first > clock and replicas for first, replicas in reversed(self.rounds))

    def ever(self) -> frozenset[int]:
        """All who take part in some clock."""
        return frozenset[int]().union(*(replicas for _, replicas in self.rounds))
