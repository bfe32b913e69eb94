"""The time from a kill until the killed role serves again, and until the speed is back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.recovery_time import increases, recoveries, speeds, spread
from benchmarks.faults.shard_parts import wall_s

PHASES = ("member", "promoted", "shard_back", "followed", "unfollowed", "takeover", "state")
"""Events that are kept."""
SERVES = {"shard": "shard_back", "followed shard": "promoted", "coordinator": "takeover"}
LEAST_S = 0.02
"""After a kill, within which a counter's last answer may still be that of the killed process."""
Looks = Sequence[Sequence[tuple[float, float]]]
"""By worker, (monotonic time in s, samples since it was started)."""


@dataclass(frozen=True)
class KilledProcess:
    """A kill that was done.

    Attributes
    ----------
    number
        Of a worker; 0 else.
    at_s, at_wall_s
        Its moment by the monotonic clock, and in seconds since 1970.
    """

    role: str
    name: str
    number: int
    at_s: float
    at_wall_s: float


def phases_of(kill: KilledProcess, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Events of `PHASES` since the kill, with `after_s`."""
    found = []
    for event in events:
        if event["event"] in PHASES and (after_s := wall_s(dict(event)) - kill.at_wall_s) > 0:
            kept = ("event", "what", "role", "id", "shard", "name", "state", "set", "reason")
            found.append({"after_s": round(after_s, 3), **{name: event[name] for name in kept if name in event}})
    return found


def served_s(kill: KilledProcess, phases: Sequence[Mapping[str, Any]], looks: Looks) -> float | None:
    """Seconds until the role serves again; None: it does not yet.

    A worker does from its first samples on, a shard when it is restored or its follower promoted, a coordinator when it
    has taken over.
    """
    if kill.role == "worker":
        mine = looks[kill.number] if looks else []
        first = next((at_s for at_s, value in mine if at_s > kill.at_s + LEAST_S and value > 0), None)
        return None if first is None else first - kill.at_s
    return next((one["after_s"] for one in phases if one["event"] == SERVES[kill.role]), None)


def recovered_s(kill: KilledProcess, looks: Looks, usual: float) -> float | None:
    """Seconds until the speed over a second is back near the usual one (`recovery_time`); 0: it never fell.

    None: it is not back yet.
    """
    together = [look for one in looks for look in spread(increases(one))]
    if not together:
        return None
    begin_s, end_s = min(at_s for at_s, _ in together), max(at_s for at_s, _ in together)
    course = speeds([(at_s - begin_s, more) for at_s, more in together], end_s - begin_s)
    return recoveries(course, [kill.at_s - begin_s], usual)[0]
