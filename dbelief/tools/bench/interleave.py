"""Interleaved timing of several ways to move bytes: each once per round, so that other load on the machine affects all.

A ratio is computed within a round, and its median over the rounds is reported; x is the bare socket's time over that of
the measured way, for the same number of bytes in each direction.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

WARM_UP = 2
"""Warm-up rounds, which are not counted."""
FEWEST = 3
"""Rounds that are measured however long they take."""
SOCKET = "socket"
"""Baseline of the ratios."""
ROUND_TRIP = "round trip"
"""Name of a pull plus the push of the same round."""

Seconds = Mapping[tuple[str, str], Sequence[float]]
"""Seconds of each round, by way and operation."""


class MeasuredWay(Protocol):
    """One way to move a block of bytes.

    Attributes
    ----------
    turns
        Its operations: "pull" a block to the measuring process, "push" one from there until it is acknowledged,
        "put" one to be stored unchanged, "exchange" one for another, or "copy" one within a process.
    """

    @property
    def name(self) -> str:
        """Name in tables."""

    @property
    def turns(self) -> Sequence[str]:
        """See above."""

    def prepare(self, size: int) -> None:
        """Set the block size, in bytes, of the following operations."""

    def turn(self, what: str) -> float:
        """Do one operation; return its seconds."""


def rounds(ways: Sequence[MeasuredWay], count: int, limit_s: float = math.inf) -> Seconds:
    """Seconds of `count` rounds, every other one in reverse order, after `WARM_UP` rounds that are not counted.

    After `limit_s` seconds no further round is begun.
    """
    began_s = time.monotonic()
    order = [(way, what) for way in ways for what in way.turns]
    seconds: dict[tuple[str, str], list[float]] = {(way.name, what): [] for way, what in order}
    for number in range(WARM_UP + count):
        if number >= WARM_UP + FEWEST and time.monotonic() - began_s >= limit_s:
            break
        for way, what in order if number % 2 else order[::-1]:
            taken = way.turn(what)
            if number >= WARM_UP:
                seconds[way.name, what].append(taken)
    return seconds


def figures(seconds: Seconds, size: int) -> list[dict[str, Any]]:
    """One row for each way and operation, and for the round trip of each way that pulls and pushes."""
    whole = {**seconds, **_round_trips(seconds)}
    against = {what: whole[SOCKET, what] for what in ("pull", "push", ROUND_TRIP)}
    against |= {"copy": against["pull"], "put": against["push"], "exchange": against[ROUND_TRIP]}
    return [
        {
            "way": way,
            "what": what,
            "rounds": len(taken),
            **percentiles(taken),
            "gb_per_s": (2 if what in ("exchange", ROUND_TRIP) else 1) * size / statistics.median(taken) / 1e9,
            "x": statistics.median(one / other for one, other in zip(against[what], taken, strict=True)),
        }
        for (way, what), taken in whole.items()
    ]


def _round_trips(seconds: Seconds) -> Seconds:
    both = [way for way, what in seconds if what == "pull" and (way, "push") in seconds]
    return {
        (way, ROUND_TRIP): [sum(pair) for pair in zip(seconds[way, "pull"], seconds[way, "push"], strict=True)]
        for way in both
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The reported percentiles, p50 and p99, in milliseconds."""
    p50, p99 = (float(np.percentile(seconds, q)) * 1e3 for q in (50, 99))
    return {"p50_ms": p50, "p99_ms": p99}
