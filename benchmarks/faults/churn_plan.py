"""Kill plans of the churn benchmark: when which process gets SIGKILL, drawn from a seed.

Plan "a": every `PERIOD_S` one process, drawn uniformly over all. Plan "b": each process has an exponential life of mean
`LIFE_S`, drawn anew at each of its starts. Plan "none": no kill. The time is that of training: 0 at its first samples.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

PERIOD_S, LIFE_S = 15.0, 30.0
PLANS = ("a", "b")


class Plan(Protocol):
    """Which processes are due to be killed."""

    def due(self, now_s: float, starts: Mapping[str, int]) -> list[str]:
        """Names of the processes to kill at this time of training.

        Parameters
        ----------
        starts
            By name: how often the process was started so far.
        """
        ...


class NoKill:
    """The undisturbed run."""

    def due(self, now_s: float, starts: Mapping[str, int]) -> list[str]:
        """See `Plan`."""
        return []


class OneByOne:
    """Plan "a"."""

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


def make_plan(plan: str, names: Sequence[str], seed: str, every_s: float | None = None) -> Plan:
    """The plan of this name over these processes; the same draws for the same seed.

    Parameters
    ----------
    every_s
        Instead of `PERIOD_S`, or of `LIFE_S`.
    """
    if plan == "none":
        return NoKill()
    return OneByOne(names, seed, every_s or PERIOD_S) if plan == "a" else Lifetimes(names, seed, every_s or LIFE_S)
