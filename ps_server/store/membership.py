"""Members of each clock of the staleness barrier."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field


@dataclass
class Membership:
    """Members of each clock: (first clock, replica numbers) by rising clock."""

    member_epoch: int = 0
    rounds: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    def at(self, clock: int) -> frozenset[int]:
        """Replica numbers of the members of `clock`."""
        row = bisect.bisect_right(self.rounds, clock, key=lambda row: row[0]) - 1
        return self.rounds[row][1] if row >= 0 else frozenset()

    def goes_on_after(self, clock: int) -> bool:
        """Whether a later clock has members."""
        return any(first > clock and replicas for first, replicas in reversed(self.rounds))

    def ever(self) -> frozenset[int]:
        """All replicas that are members of some clock."""
        return frozenset[int]().union(*(replicas for _, replicas in self.rounds))
