"""Shares of the replicas' time by phase, as in Table 3 of You et al. 2017."""

from __future__ import annotations

from collections.abc import Mapping

SHARES = ("compute", "data", "communicate", "wait")
"""`communicate` is exposed communication: fetches and pushes that the computing thread waited for, including waits of
shards or other replicas. `wait` is time without work: before a lease, in a warm start, while evaluating."""

_SHARE_OF = {"fetch": "communicate", "push": "communicate"}


def shares(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Shares of all replicas' total time, each from 0 to 1; empty where no time was reported.

    Parameters
    ----------
    seconds
        By replica and phase, as `Summary.phase_seconds`.
    """
    sums = dict.fromkeys(SHARES, 0.0)
    for phases in seconds.values():
        for phase, spent in phases.items():
            sums[_SHARE_OF.get(phase, phase)] += spent
    total = sum(sums.values())
    return {name: spent / total for name, spent in sums.items()} if total else {}


def in_words(parts: Mapping[str, float]) -> str:
    """Shares in percent, in one line."""
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts.items())
