"""Quorum of a round: how many replicas end it, and how long a shard then waits for the others."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

GRACE_SHARE = 1 / 32
"""Grace period without `grace_s`, as a share of the time up to the quorum: replicas of one speed differ by less."""


@dataclass(frozen=True)
class Quorum:
    """Settings of a job's rounds.

    Attributes
    ----------
    replicas
        Pushes of a round after which it may end.
    grace_s
        Seconds that the round then stays open; None: a 32nd of the time up to the quorum.
    stale
        Factor of the weight of a push for each round that it is late; 0: it has no effect.
    """

    replicas: int
    grace_s: float | None
    stale: float


@dataclass
class GracePeriods:
    """Grace periods of the open rounds of a shard, by segment; each entry is used with that segment's lock held.

    A replica that has come to its last round later than a grace period is not waited for: one that is ten times slower
    would cost the others that time in each round. One that was only a little late is, so that it is in time again.
    """

    quorum: Quorum
    _opened_s: dict[int, float] = field(default_factory=dict)
    _ends: dict[int, tuple[int, float, float]] = field(default_factory=dict)  # round, its grace and when that ends
    _late_s: dict[tuple[int, int], float] = field(default_factory=dict)  # by segment and replica, of its last push

    def pushed(self, index: int, replica: int, late: int, now_s: float) -> None:
        """Record a push of a segment, once, so many rounds late."""
        opened_s = self._opened_s.setdefault(index, now_s)  # a shard's first round begins with its first push
        self._late_s[index, replica] = 0.0 if not late else now_s - opened_s if late == 1 else math.inf

    def is_over(self, index: int, round_: int, count: int, missing: Iterable[int], now_s: float) -> bool:
        """Whether a segment's round may end without `missing` replicas: `count` have pushed it, or have left it out."""
        if count < self.quorum.replicas:  # perhaps again: that of a failed replica is dropped
            self._ends.pop(index, None)
            return False
        known, grace_s, end_s = self._ends.get(index, (-1, 0.0, 0.0))
        if known != round_:
            # A segment that has migrated, or whose follower was promoted, begins its round here.
            grace_s = (now_s - self._opened_s.setdefault(index, now_s)) * GRACE_SHARE
            grace_s = grace_s if self.quorum.grace_s is None else self.quorum.grace_s
            end_s = now_s + grace_s
            self._ends[index] = round_, grace_s, end_s
        return now_s >= end_s or all(self._late_s.get((index, one), 0.0) > grace_s for one in missing)

    def closed(self, index: int, now_s: float) -> None:
        """Record that a segment's round has ended, and the next one begins."""
        self._opened_s[index] = now_s
        self._ends.pop(index, None)

    def clear(self) -> None:
        """Drop all periods: no replica trains, and the next round begins with its first push."""
        self._opened_s.clear()
        self._ends.clear()
        self._late_s.clear()

    def retain(self, indices: Container[int]) -> None:
        """Drop those of all other segments: they are at other shards now."""
        for index in [index for index in self._opened_s.keys() | self._ends.keys() if index not in indices]:
            self._opened_s.pop(index, None)
            self._ends.pop(index, None)
        for key in [key for key in self._late_s if key[0] not in indices]:
            del self._late_s[key]

    def next_end_s(self, indices: Iterable[int], until_s: float) -> float:
        """When the first of these segments' grace periods ends, at most `until_s`."""
        return min([until_s, *(known[2] for known in map(self._ends.get, indices) if known is not None)])
