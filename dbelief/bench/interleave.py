"""Ways to move bytes take turns: each once in each round, so that whatever else the machine does meets them all.

A ratio is taken within a round, and its median over the rounds is told; x is the bare socket's time over that of the
way at hand, for as many bytes to and fro.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

WARM_UP = 2
"""Rounds that are not counted."""
SOCKET = "socket"
"""What ratios are against."""
ROUND_TRIP = "round trip"
"""A pull and the push of the same round."""

Seconds = Mapping[tuple[str, str], Sequence[float]]
"""By way and turn, of each round."""


class Way(Protocol):
    """One way to move a block of bytes.

    Attributes
    ----------
    turns
        What it does: "pull" a block to the one who measures, "push" one from there until that is acknowledged,
        "put" one there to be kept as it is, "exchange" one for another, or "copy" one within a process.
    """

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def turns(self) -> Sequence[str]:
        """See above."""

    def prepare(self, size: int) -> None:
        """From now on blocks have so many bytes."""

    def turn(self, what: str) -> float:
        """Do it once; the seconds that it took."""


def rounds(ways: Sequence[Way], count: int) -> Seconds:
    """So many rounds, every other one in the opposite order."""
    order = [(way, what) for way in ways for what in way.turns]
    seconds: dict[tuple[str, str], list[float]] = {(way.name, what): [] for way, what in order}
    for number in range(WARM_UP + count):
        for way, what in order if number % 2 else order[::-1]:
            taken = way.turn(what)
            if number >= WARM_UP:
                seconds[way.name, what].append(taken)
    return seconds


def figures(seconds: Seconds, size: int) -> list[dict[str, Any]]:
    """A row for each way and turn, and for the round trip of those that pull and push."""
    whole = {**seconds, **_round_trips(seconds)}
    against = {what: whole[SOCKET, what] for what in ("pull", "push", ROUND_TRIP)}
    against |= {"copy": against["pull"], "put": against["push"], "exchange": against[ROUND_TRIP]}
    return [
        {
            "way": way,
            "what": what,
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
    """The two that are told, in milliseconds."""
    p50, p99 = (float(np.percentile(seconds, q)) * 1e3 for q in (50, 99))
    return {"p50_ms": p50, "p99_ms": p99}
