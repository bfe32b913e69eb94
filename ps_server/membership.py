"""Who takes part in which round of the staleness dial."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Membership:
    """Who takes part in which round: (first clock, replica numbers) by rising clock."""

    member_epoch: int = 0
    rounds: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    def at(self, clock: int) -> frozenset[int]:
        """Replica numbers that round `clock` waits for."""
        current: frozenset[int] = frozenset()
        for first, replicas in self.rounds:
            if first > clock:
                break
            current = replicas
        return current

    def goes_on_after(self, clock: int) -> bool:
        """Whether a later round has members."""
        return any(first > clock and replicas for first, replicas in self.rounds)
