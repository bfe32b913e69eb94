"""Kill plans of the churn benchmark: when which process gets SIGKILL, drawn from a seed.

Plan "a": every `PERIOD_S` one process, drawn uniformly over all. Plan "b": each process has an exponential life of mean
`LIFE_S`, drawn anew at each of its starts. Plan "c": each learner has an exponential life of mean `LEARNER_LIFE_S`, and
returns `AWAY_S` after its death; every `SHARD_S` a leading shard dies, and after a third and two thirds of the time the
leading coordinator, which returns once the standby leads. Plan "none": no kill. The time is that of training: 0 at its
first samples.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

PERIOD_S, LIFE_S = 15.0, 30.0
LEARNER_LIFE_S, AWAY_S, SHARD_S = 60.0, 10.0, 60.0
PLANS = ("a", "b", "c")
USUAL_S = {"a": PERIOD_S, "b": LIFE_S, "c": LEARNER_LIFE_S}
LEARNERS = ("worker-", "rank-")
LEADING_COORDINATOR, LEADING_SHARD = "leading coordinator", "leading shard "
"""Names for the processes that have these parts at the moment; the latter with the shard's number behind it."""


class Plan(Protocol):
    """Which processes are due to be killed.

    Attributes
    ----------
    away_s
        By role, the seconds from a death to the next start; others start at once.
    """

    away_s: Mapping[str, float]

    def due(self, now_s: float, starts: Mapping[str, int]) -> list[str]:
        """Names of the processes to kill at this time of training, or parts.

        Parameters
        ----------
        starts
            By name: how often the process was started so far.
        """
        ...


class NoKill:
    """The undisturbed run."""

    away_s: Mapping[str, float] = MappingProxyType({})

    def due(self, now_s: float, starts: Mapping[str, int]) -> list[str]:
        """See `Plan`."""
        return []


class OneByOne:
    """Plan "a"."""

    away_s: Mapping[str, float] = MappingProxyType({})

    def __init__(self, names: Sequence[str], seed: str, period_s: float = PERIOD_S) -> None:
        self._names, self._period_s, self._done = sorted(names), period_s, 0
        self._rng = random.Random(f"{seed} a")

    def due(self, now_s: float, starts: Mapping[str, int]) -> list[str]:
        """See `Plan`; after a gap in the calls no more than one is due."""
        periods = int(now_s // self._period_s)
        if periods <= self._done:
            return []
        drawn = [self._rng.choice(self._names) for _ in range(periods - self._done)]
        self._done = periods
        return drawn[-1:]


class Lifetimes:
    """Plan "b"; the life of a process is drawn from the seed, its name and the number of its start."""

    away_s: Mapping[str, float] = MappingProxyType({})

    def __init__(self, names: Sequence[str], seed: str, mean_s: float = LIFE_S) -> None:
        self._seed, self._mean_s = seed, mean_s
        self._ends_s: dict[str, tuple[int, float]] = dict.fromkeys(names, (0, 0.0))

    def due(self, now_s: float, starts: Mapping[str, int]) -> list[str]:
        """See `Plan`."""
        for name, (start, _) in self._ends_s.items():
            if starts[name] != start:
                life_s = random.Random(f"{self._seed} b {name} {starts[name]}").expovariate(1 / self._mean_s)
                self._ends_s[name] = starts[name], now_s + life_s
        due = [name for name, (_, end_s) in self._ends_s.items() if now_s >= end_s]
        for name in due:  # killed once: its next start draws again
            self._ends_s[name] = starts[name], float("inf")
        return due


class ByRole:
    """Plan "c"; all moments are drawn from the seed and a learner's number, whenever it starts.

    Parameters
    ----------
    shards
        Number of shards; 0 where there are none, nor a coordinator.
    seconds
        Expected time of training.
    """

    away_s: Mapping[str, float] = MappingProxyType({"worker": AWAY_S, "coordinator": 2 * AWAY_S})

    def __init__(
        self, names: Sequence[str], seed: str, shards: int, seconds: float, mean_s: float = LEARNER_LIFE_S
    ) -> None:
        learners = [name for name in sorted(names) if name.startswith(LEARNERS)]
        moments = [_deaths_of(name, f"{seed} c {number}", mean_s) for number, name in enumerate(learners)]
        if shards:
            rng = random.Random(f"{seed} c shards")
            drawn = ((SHARD_S * n, f"{LEADING_SHARD}{rng.randrange(shards)}") for n in itertools.count(1))
            moments += [drawn, iter([(seconds * n / 3, LEADING_COORDINATOR) for n in (1, 2)])]
        self._moments = heapq.merge(*moments)
        self._next = next(self._moments)

    def due(self, now_s: float, starts: Mapping[str, int]) -> list[str]:
        """See `Plan`."""
        names = []
        while self._next[0] <= now_s:
            names.append(self._next[1])
            self._next = next(self._moments)
        return names


def _deaths_of(name: str, seed: str, mean_s: float) -> Iterator[tuple[float, str]]:
    """(moment in s, name) of each death of a learner."""
    rng, at_s = random.Random(seed), 0.0
    while True:
        at_s += rng.expovariate(1 / mean_s)
        yield at_s, name
        at_s += AWAY_S


def make_plan(
    plan: str, names: Sequence[str], seed: str, every_s: float | None = None, shards: int = 0, seconds: float = 0.0
) -> Plan:
    """The plan of this name over these processes; the same draws for the same seed.

    Parameters
    ----------
    every_s
        Instead of `PERIOD_S`, `LIFE_S`, or `LEARNER_LIFE_S`.
    shards, seconds
        See `ByRole`.
    """
    if plan == "none":
        return NoKill()
    if plan == "c":
        return ByRole(names, seed, shards, seconds, every_s or LEARNER_LIFE_S)
    return OneByOne(names, seed, every_s or PERIOD_S) if plan == "a" else Lifetimes(names, seed, every_s or LIFE_S)
