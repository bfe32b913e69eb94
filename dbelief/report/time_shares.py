"""What replicas' time went into: shares of it, as in Table 3 of You et al. 2017."""

from __future__ import annotations

from collections.abc import Mapping

SHARES = ("compute", "data", "communicate", "wait")
"""`communicate` is what is exposed: fetches and pushes that the computing thread waited for, until shards or other
replicas had what they had to wait for. `wait` is without work: before a lease, in a warm start, while evaluating."""

_SHARE_OF = {"fetch": "communicate", "push": "communicate"}


def shares(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Shares of all replicas' time together, each from 0 to 1; none where nothing was told.

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
    """Shares as percent, in one line."""
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts.items())
