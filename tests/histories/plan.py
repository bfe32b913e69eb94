"""Plan of a history: its kind, transport and operations follow from its number, the moments of faults from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What happens during a history."""

    CLIENTS = "clients killed and paused"
    MOVE = "segments move"
    KILL = "leaders killed, followers promoted"
    PAUSE = "leaders paused for less than their lease"
    DEPOSE = "leaders paused until a follower is promoted, then resumed"
    CUT = "links to shards cut and stalled"
    STALENESS = "staleness bounded"


class Transport(Enum):
    """How clients reach shards."""

    SHARED_MEMORY = "shared memory"
    TCP = "TCP"
    TLS = "TLS"


@dataclass(frozen=True)
class Plan:
    """One history.

    Attributes
    ----------
    number
        From 0. Seven kinds, three transports and two sets of operations have no common divisor: all 42 combinations
        occur, one after the other.
    exchanges
        Whether clients exchange and pull, else push and pull. A job with a bound on staleness has no exchanges.
    """

    number: int
    kind: Kind
    transport: Transport
    exchanges: bool

    @classmethod
    def of(cls, number: int) -> Plan:
        """The plan with this number."""
        kind, transport = list(Kind)[number % 7], list(Transport)[number % 3]
        return cls(number, kind, transport, number % 2 == 1 and kind is not Kind.STALENESS)

    @property
    def tables(self) -> bool:
        """Whether the job has a table, whose buckets are objects of the history too."""
        return self.number % 4 == 0

    @property
    def random(self) -> random.Random:
        """The source of the moments and lengths of its faults."""
        return random.Random(self.number)

    @property
    def followers(self) -> bool:
        """Whether each shard has a follower."""
        return self.kind in (Kind.KILL, Kind.PAUSE, Kind.DEPOSE, Kind.CUT)

    @property
    def staleness(self) -> int | None:
        """The job's bound, in clocks; None: none."""
        return 1 + self.number % 3 if self.kind is Kind.STALENESS else None

    def __str__(self) -> str:
        calls = f"{'exchange' if self.exchanges else 'push'} and pull{', with rows' * self.tables}"
        return f"{self.kind.value}; {self.transport.value}; {calls}"
