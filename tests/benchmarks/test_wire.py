"""What the wire must reach, held against figures as `dbelief bench wire` tells them."""

from __future__ import annotations

from typing import Any

import wire

REACHED = {"pull": 0.9, "push": 0.8, "round trip": 0.85, "exchange": 0.1}


def found(even: float = 2.0, **ratios: float) -> dict[str, Any]:
    ways = [{"way": "dbelief, tcp", "what": what, "x": x} for what, x in {**REACHED, **ratios}.items()]
    crowds = [{"what": "push", "p99_over_p50": even}, {"what": "pull", "p99_over_p50": 9.0}]
    return {"ways": [*ways, {"way": "socket, aligned memory", "what": "pull", "x": 0.1}], "crowds": crowds}


def test_what_misses_its_limit_is_named() -> None:
    assert wire.missed(found()) == []
    assert wire.missed(found(push=0.5)) == ["push: 0.50, wanted at least 0.68"]
    assert wire.missed(found(even=3.5)) == ["p99 over p50: 3.50, wanted at most 3.0"]
