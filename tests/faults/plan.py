"""What goes wrong, and when: drawn from a seed, printed in a few lines, the same for the same seed.

A gRPC stream keeps its order and loses nothing in its middle. What a network does to packets shows as what happens to
whole streams: they break, they stand still in silence, and what was on its way arrives late, or twice. So a fault has
its place at one message, and says what becomes of the stream there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Way(Enum):
    """Which messages of a link are counted for a fault's place, each way for itself and over all its streams."""

    PUSH = "push"  # what the client sends on Push streams
    PULL = "pull"  # what it gets on Pull streams
    CALL = "call"  # its unary calls


class Kind(Enum):
    """What becomes of a message, and of its stream."""

    DELAY = "delay"  # it waits a moment
    DROP = "drop"  # it and all behind it on its stream vanish in silence: only a deadline finds out
    CUT_BEFORE = "cut before"  # its stream breaks, and the peer never sees it
    CUT_AFTER = "cut after"  # its stream breaks once the peer has worked off all up to it: no answer comes back
    CUT_ANSWER = "cut answer"  # it arrives; the next answer is lost, and the stream with it
    REPEAT = "repeat"  # it arrives; all since the last opening arrives once more, on a stream of its own
    LATE = "late"  # its stream breaks; all since the last opening arrives (again) when more has passed


POSSIBLE: Mapping[Way, tuple[Kind, ...]] = {
    Way.PUSH: tuple(Kind),
    Way.PULL: (Kind.DELAY, Kind.DROP, Kind.CUT_BEFORE),
    Way.CALL: (Kind.DELAY, Kind.CUT_BEFORE, Kind.CUT_ANSWER, Kind.REPEAT, Kind.LATE),
}
"""A pull changes nothing, so what repeats or comes late has no meaning there; a unary call has one answer."""

LONGEST_DELAY_S = 0.005
FURTHEST = 60
"""How many messages may pass a late one."""


@dataclass(frozen=True, order=True)
class Fault:
    """One thing that goes wrong on one link.

    Attributes
    ----------
    link
        Its name, "pusher.shard".
    at
        Which message, from 0, counted over all streams of that link and way.
    amount
        DELAY: seconds; LATE: how many messages pass first; else 0.
    """

    link: str
    way: Way
    at: int
    kind: Kind
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.link} {self.way.value} {self.at}: {self.kind.value}{f' {self.amount:g}' if self.amount else ''}"


class Harm(Enum):
    """What happens to a process, or to its files."""

    KILL = "kill"  # SIGKILL
    PAUSE = "pause"  # SIGSTOP, and SIGCONT `amount` seconds later
    DISK_FULL = "disk full"  # no file may grow beyond `amount` bytes
    TORN_FILE = "torn file"  # a file that it wrote ends at the share `amount` of its length
    FLIPPED_BIT = "flipped bit"  # one bit at the share `amount` of a file that it wrote is another


@dataclass(frozen=True, order=True)
class Accident:
    """One thing that happens to one process, when the test has come to a step."""

    step: int
    process: str
    harm: Harm
    amount: float = 0.0

    def __str__(self) -> str:
        return f"step {self.step}: {self.harm.value} {self.process}{f' {self.amount:.3g}' if self.amount else ''}"


@dataclass(frozen=True)
class Plan:
    """All that goes wrong in one test. Its text tells it all, so a test that fails prints it."""

    seed: int | None = None
    faults: tuple[Fault, ...] = ()
    accidents: tuple[Accident, ...] = ()

    def __str__(self) -> str:
        rows = "".join(f"\n  {row}" for row in (*self.faults, *self.accidents))
        return f"plan of seed {self.seed}:{rows or ' nothing goes wrong'}"

    @classmethod
    def draw(
        cls,
        seed: int,
        links: Mapping[str, Mapping[Way, int]],
        share: float = 0.01,
        weights: Mapping[Kind, float] | None = None,
        accidents: Sequence[Accident] = (),
    ) -> Plan:
        """A plan in which so large a share of the messages has a fault.

        Parameters
        ----------
        links
            Per link and way how many messages are expected.
        weights
            How often a kind is drawn, against 1 for the others.
        """
        rng = random.Random(seed)
        drawn = []
        for link, ways in sorted(links.items()):
            for way, messages in sorted(ways.items(), key=lambda item: item[0].value):
                kinds = POSSIBLE[way]
                likely = [1.0 if weights is None else weights.get(kind, 1.0) for kind in kinds]
                for at in sorted(rng.sample(range(messages), round(share * messages))):
                    kind = rng.choices(kinds, likely)[0]
                    drawn.append(Fault(link, way, at, kind, _amount(kind, rng)))
        return cls(seed, tuple(drawn), tuple(accidents))


def _amount(kind: Kind, rng: random.Random) -> float:
    if kind is Kind.DELAY:
        return rng.uniform(0, LONGEST_DELAY_S)
    return rng.randrange(1, FURTHEST) if kind is Kind.LATE else 0.0


def draw_accidents(
    seed: int, processes: Sequence[str], steps: int, count: int, harms: Sequence[Harm] = tuple(Harm)
) -> tuple[Accident, ...]:
    """So many accidents over the steps of a test, by rising step."""
    rng = random.Random(seed)
    drawn = []
    for step in sorted(rng.sample(range(steps), count)):
        harm = rng.choice(harms)
        amount = {
            Harm.KILL: 0.0,
            Harm.PAUSE: rng.uniform(0.05, 0.5),
            Harm.DISK_FULL: float(rng.randrange(1, 4096)),
            Harm.TORN_FILE: rng.random(),
            Harm.FLIPPED_BIT: rng.random(),
        }[harm]
        drawn.append(Accident(step, rng.choice(processes), harm, amount))
    return tuple(drawn)
