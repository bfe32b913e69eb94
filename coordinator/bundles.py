"""One pass over a batch: its portions, the bundles of them that replicas compute, and copies for the idle at the end.

A batch is cut in portions much smaller than a replica's share. Whoever is free takes the next bundle: consecutive
portions, fewer the fewer are left, and where it can, those that follow its last ones. What a bundle holds is settled
when it is first taken. When none is left, the idle take copies of what is outstanding; the first one done counts, and
the shards add a bundle once, whoever sends it. No clock, no socket.

Source: DistBelief section 4.2 (small portions, data affinity, backup tasks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Bundle(NamedTuple):
    """Portions first .. first + portions - 1 of a pass, under the number that shards know it by."""

    number: int
    first: int
    portions: int

    @property
    def stop(self) -> int:
        """One past its last portion."""
        return self.first + self.portions


class Run(NamedTuple):
    """One replica's work on one bundle, for the picture of a pass; `stop_s` is None while it goes on."""

    replica: int
    bundle: Bundle
    backup: bool
    start_s: float
    stop_s: float | None = None
    won: bool = False


@dataclass
class _Outstanding:
    bundle: Bundle
    holders: dict[int, int] = field(default_factory=dict)
    """By incarnation, the index of its run."""


class Pass:
    """One pass over one batch.

    Parameters
    ----------
    portions
        How many the batch is cut in, at least 1.
    most
        Portions of a bundle, at most.
    backups
        Whether the idle get copies of what is outstanding.
    ordered
        Cut bundles of `most` portions beforehand, and number them by place: the same for any number of replicas.

    Attributes
    ----------
    runs
        Who computed what, when; by the order in which they began.
    launched, won
        How many backups there were, and how many of them were done first.
    """

    def __init__(self, portions: int, most: int, backups: bool = True, ordered: bool = False) -> None:
        self.portions = portions
        self.runs: list[Run] = []
        self.launched = self.won = 0
        self._most, self._backups, self._ordered = most, backups, ordered
        self._free: list[tuple[int, int]] = [(0, portions)]
        self._again: list[Bundle] = []  # outstanding ones whose last holder is gone
        self._outstanding: dict[int, _Outstanding] = {}
        self._done: dict[int, tuple[float, int]] = {}  # by number: sum of losses and samples
        self._last: dict[int, int] = {}  # by replica number: where its last bundle ended
        self._cuts = 0

    @property
    def complete(self) -> bool:
        """Whether every portion is in some bundle that is done."""
        return not (self._free or self._again or self._outstanding)

    @property
    def done(self) -> int:
        """Bundles done."""
        return len(self._done)

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of all samples, added in the order of the bundles' numbers."""
        return math.fsum(self._done[number][0] for number in sorted(self._done))

    @property
    def samples(self) -> int:
        """Samples of the bundles that are done."""
        return sum(samples for _, samples in self._done.values())

    # -- handing out -------------------------------------------------------------------------------------

    def take(self, number: int, incarnation: int, living: int, now_s: float) -> Bundle | None:
        """Give a replica something to compute; what it holds already where its call is repeated. None: nothing.

        Parameters
        ----------
        living
            How many replicas share the work.
        """
        for held in self._outstanding.values():
            if incarnation in held.holders:
                return held.bundle
        backup = False
        bundle = self._again.pop(0) if self._again else self._next(number, living)
        if bundle is None and self._backups:
            bundle, backup = self._copy(), True
        if bundle is None:
            return None
        outstanding = self._outstanding.setdefault(bundle.number, _Outstanding(bundle))
        outstanding.holders[incarnation] = len(self.runs)
        self.runs.append(Run(number, bundle, backup, now_s))
        self.launched += backup
        self._last[number] = bundle.stop
        return bundle

    def _next(self, number: int, living: int) -> Bundle | None:
        """A new bundle of free portions."""
        if not self._free:
            return None
        left = sum(stop - start for start, stop in self._free)
        count = self._most if self._ordered else max(1, min(self._most, left // (2 * max(1, living))))
        start, stop = self._place(number)
        return self._cut(start, min(start + count, stop))

    def _place(self, number: int) -> tuple[int, int]:
        """Where a replica goes on: after its last bundle, else where nobody else goes on, else in the widest gap."""
        last = self._last.get(number)
        for start, stop in self._free:
            if start == last:
                return start, stop
        ends = set(self._last.values())
        start, stop = max(self._free, key=lambda gap: (gap[0] not in ends, gap[1] - gap[0]))
        if start in ends:
            unit = self._most if self._ordered else 1
            start += (stop - start) // 2 // unit * unit
        return start, stop

    def _cut(self, start: int, stop: int) -> Bundle:
        gap = next(gap for gap in self._free if gap[0] <= start < gap[1])
        at = self._free.index(gap)
        self._free[at : at + 1] = [part for part in ((gap[0], start), (stop, gap[1])) if part[0] < part[1]]
        self._cuts += 1
        return Bundle(start // self._most + 1 if self._ordered else self._cuts, start, stop - start)

    def _copy(self) -> Bundle | None:
        """What the fewest compute, and of those what has been under way the longest."""
        if not self._outstanding:
            return None
        return min(self._outstanding.values(), key=lambda o: (len(o.holders), min(o.holders.values()))).bundle

    # -- what becomes of it ------------------------------------------------------------------------------

    def told(self, incarnation: int, number: int, loss_sum: float, samples: int, now_s: float) -> bool:
        """A replica has computed a bundle, and all shards hold it; False where another was first."""
        outstanding = self._outstanding.pop(number, None)
        if outstanding is None:  # done already; or its holder had been given up, or hears of another coordinator
            waiting = [bundle for bundle in self._again if bundle.number == number]
            if not waiting:
                return False
            self._again.remove(waiting[0])
            outstanding = _Outstanding(waiting[0])
        self._done[number] = loss_sum, samples
        for holder, index in outstanding.holders.items():
            won = holder == incarnation
            self.runs[index] = self.runs[index]._replace(stop_s=now_s, won=won)
            self.won += won and self.runs[index].backup
        return True

    def gone(self, incarnation: int, now_s: float) -> None:
        """A life is over: what it alone held is for another."""
        for number, outstanding in list(self._outstanding.items()):
            index = outstanding.holders.pop(incarnation, None)
            if index is not None:
                self.runs[index] = self.runs[index]._replace(stop_s=now_s)
            if not outstanding.holders:
                del self._outstanding[number]
                self._again.append(outstanding.bundle)

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What is settled, as JSON has it; the picture is not kept."""
        return {
            "free": self._free,
            "again": [*self._again, *(o.bundle for o in self._outstanding.values())],
            "done": [[number, *of] for number, of in self._done.items()],
            "cuts": self._cuts,
            "launched": self.launched,
            "won": self.won,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there: what was outstanding is taken again, under the same numbers."""
        self._free = [(int(start), int(stop)) for start, stop in state["free"]]
        self._again = [Bundle(*map(int, row)) for row in state["again"]]
        self._done = {int(number): (float(loss), int(samples)) for number, loss, samples in state["done"]}
        self._cuts = int(state["cuts"])
        self.launched, self.won = int(state["launched"]), int(state["won"])
