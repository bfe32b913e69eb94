"""Limits of a shard's memory: refused requests create nothing, and existing state remains usable."""

from __future__ import annotations

from typing import Any

from benchmarks.wire import limits

REACHED = {"pull": 0.9, "push": 0.8, "round trip": 0.85, "exchange": 0.1}


def found(even: float = 2.0, **ratios: float) -> dict[str, Any]:
    ways = [{"way": "dbelief, tcp", "what": what, "x": x} for what, x in {**REACHED, **ratios}.items()]
    crowds = [{"what": "push", "p99_over_p50": even}, {"what": "pull", "p99_over_p50": 9.0}]
    return {"ways": [*ways, {"way": "socket, aligned memory", "what": "pull", "x": 0.1}], "crowds": crowds}


def test_missed_limits_are_named() -> None:
    assert limits.missed(found()) == []
    assert limits.missed(found(push=0.5)) == ["push: 0.50, wanted at least 0.68"]
    assert limits.missed(found(even=3.5)) == ["p99 over p50: 3.50, wanted at most 3.0"]
