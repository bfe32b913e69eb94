"""The log of a simulated run: what happened at the places that the model names, in the order of the simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dbelief.core.push import Pusher

Lasts = dict[Pusher, int]
"""Of one segment's ledger: number of the last push to "w" of each pusher."""


@dataclass
class Entry:
    """One entry.

    Attributes
    ----------
    kind
        Name; `Recorder` has them.
    process
        Number of the simulated process in which it happened.
    segment
        Index; -1: not of one segment.
    pusher, sequence
        Of a push; None and 0: not of one push.
    about
        More, by name.
    """

    kind: str
    process: int
    segment: int = -1
    pusher: Pusher | None = None
    sequence: int = 0
    about: dict[str, Any] = field(default_factory=dict)


@dataclass
class Log:
    """A run.

    Attributes
    ----------
    entries
        In order. An entry that a later moment completes stands at its own.
    addresses
        Process that serves at an address.
    names
        Of the processes.
    """

    entries: list[Entry] = field(default_factory=list)
    addresses: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def add(self, kind: str, process: int, segment: int = -1, **about: Any) -> Entry:
        """Append an entry."""
        entry = Entry(kind, process, segment, about.pop("pusher", None), about.pop("sequence", 0), about)
        self.entries.append(entry)
        return entry

    def move_to_end(self, entry: Entry) -> None:
        """Let one of the last entries take place now."""
        index = next(i for i in reversed(range(len(self.entries))) if self.entries[i] is entry)
        self.entries.append(self.entries.pop(index))
