"""The last events of a run as text, for displays: members that joined, failed, were replaced or restored, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dbelief.monitor.event_text import event_text, is_trouble

MOST = 100
"""Maximum number of events; older ones are dropped."""


@dataclass(frozen=True)
class RecentEvent:
    """One event: seconds since 1970-01-01 UTC, its text, and whether something failed or was lost."""

    time_s: float
    text: str
    trouble: bool


class RecentEvents:
    """The last `MOST` events that have a text. O(1) per event."""

    def __init__(self) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=MOST)
        self._gone: set[tuple[str, int]] = set()

    def take(self, name: str, fields: Mapping[str, Any], time_s: float) -> None:
        """Add an event."""
        text = event_text(name, fields)
        if text is None:
            return
        if name == "member":
            text += self._replaces(str(fields["role"]), int(fields["id"]), fields["what"])
        self._events.append(RecentEvent(time_s, text, is_trouble(name, fields)))

    def _replaces(self, role: str, number: int, what: str) -> str:
        """Suffix of the text where a member gets the number of one that has ended."""
        if what != "joined":
            self._gone.add((role, number))
        elif (role, number) in self._gone:
            self._gone.remove((role, number))
            return f", replaces the former {role} {number}"
        return ""

    def since(self, earlier: RecentEvents) -> list[RecentEvent]:
        """All events of `earlier`, then all of these, limited to the last `MOST`."""
        both: Iterable[RecentEvent] = (*earlier._events, *self._events)
        return list(deque(both, maxlen=MOST))
