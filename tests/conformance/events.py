"""Events of a trace, in the vocabulary of the model: `tests/model/kinds.pml` has the kinds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tests.model.search import HERE as MODEL

_DEFINITION = re.compile(r"#define (\w+) (\d+) +/\*(.*?)\*/")


@cache
def kinds() -> dict[str, tuple[int, tuple[str, ...]]]:
    """By name: number of a kind, and names of its flags."""
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for name, number, about in _DEFINITION.findall((MODEL / "kinds.pml").read_text()):
        flags = re.findall(r"\(.*\)$", about.strip())
        names = re.findall(r"(?:^\(|, )(\w+)", flags[0]) if flags else []
        found[name] = int(number), tuple(names)
    return found


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes
    ----------
    slot
        Of the process, or the number of the shard.
    number, flag, other
        As the kind has them.
    """

    kind: str
    slot: int = 0
    number: int = 0
    flag: bool = False
    other: bool = False

    def __str__(self) -> str:
        names = [name for name, true in zip(kinds()[self.kind][1], (self.flag, self.other), strict=False) if true]
        return " ".join([self.kind, str(self.slot), str(self.number), *names])

    @classmethod
    def parse(cls, text: str) -> Event:
        """The event with this text, as `str` makes it; slot and number are 0 where they are not given."""
        kind, *words = text.split()
        numbers = [int(word) for word in words if word.isdigit()]
        names = kinds()[kind][1]
        unknown = [word for word in words if not word.isdigit() and word not in names]
        if unknown:
            raise ValueError(f"{text}: {kind} has no {unknown[0]}")
        flags = [name in words for name in names]
        slot, number = [*numbers, 0, 0][:2]
        return cls(kind, slot, number, *flags)

    @property
    def line(self) -> str:
        """The line that the acceptor reads."""
        return f"{kinds()[self.kind][0]} {self.slot} {self.number} {self.flag:d} {self.other:d}"


def text_of(events: Sequence[Event]) -> str:
    """A trace as the acceptor reads it."""
    return "".join(f"{event.line}\n" for event in events)
