"""One pass over a batch: its portions, the bundles of them that replicas compute, and backup tasks at the end.

A batch is cut in portions much smaller than a replica's share. An idle replica gets the next bundle: consecutive
portions, fewer when fewer are left or the replica is slower, and where possible those that follow its last ones. The
content of a bundle is fixed when it is first assigned. When none is left, idle replicas get copies of outstanding
bundles. The first one done counts, and the shards add a bundle once, whichever replica sends it. No clock, no socket.

Source: DistBelief section 4.2 (small portions, data affinity, backup tasks); Hummel et al. 1996 (each replica's share
of half of what is left, by its speed).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dbelief.core.push import MOST_AHEAD

from ..core.messages import BundleResult

ATTEMPTS = 3
"""Failures of a bundle (an error, or the failure of its replicas) after which the job fails."""


class Bundle(NamedTuple):
    """Portions first .. first + portions - 1 of a pass, under the number that identifies them at the shards."""

    number: int
    first: int
    portions: int

    @property
    def stop(self) -> int:
        """One past its last portion."""
        return self.first + self.portions


class Attempt(NamedTuple):
    """One replica's work on one bundle, for the picture of a pass; `stop_s` is None while it runs."""

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
    """By incarnation, the index of its attempt in `runs`."""


class PassScheduler:
    """One pass over one batch.

    Parameters
    ----------
    portions
        Number of portions in the batch, at least 1.
    most
        Portions of a bundle, at most.
    backups
        Whether idle replicas get copies of outstanding bundles.
    ordered
        Use fixed bundles of `most` portions, numbered by place: the same for any number of replicas. They are assigned
        in this order, none of them `MOST_AHEAD` or more ahead of one that is outstanding.
    paces
        Seconds per portion of each replica, by number, as far as they are known.

    Attributes
    ----------
    runs
        The attempts, in the order in which they began.
    launched, won
        Number of backups, and of those that were done first.
    failed
        A bundle that failed too often, and why; None while there is none.
    """

    def __init__(
        self,
        portions: int,
        most: int,
        backups: bool = True,
        ordered: bool = False,
        paces: Mapping[int, float] | None = None,
    ) -> None:
        self.portions = portions
        self.runs: list[Attempt] = []
        self.launched = self.won = 0
        self.failed: tuple[Bundle, str] | None = None
        self._most, self._backups, self._ordered = most, backups, ordered
        self._seconds_per_portion = {} if paces is None else paces
        self._free: list[tuple[int, int]] = [(0, portions)]
        self._unheld: list[Bundle] = []  # outstanding ones whose last holder is gone
        self._outstanding: dict[int, _Outstanding] = {}
        self._done: dict[int, tuple[float, int]] = {}  # by number: sum of losses and samples
        self._last: dict[int, int] = {}  # by replica number: where its last bundle ended
        self._stops: dict[int, float] = {}  # by replica number: when its last bundle was done
        self._tried: dict[int, list[int]] = {}  # by number, once a holder failed: the incarnations whose failure counts
        self._cuts = 0

    @property
    def complete(self) -> bool:
        """Whether every portion is in some bundle that is done."""
        return not (self._free or self._unheld or self._outstanding)

    @property
    def done(self) -> int:
        """Bundles done."""
        return len(self._done)

    @property
    def portions_done(self) -> int:
        """Portions of the bundles that are done."""
        left = [bundle.portions for bundle in self._unheld] + [o.bundle.portions for o in self._outstanding.values()]
        return self.portions - sum(stop - start for start, stop in self._free) - sum(left)

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of all samples, added in the order of the bundles' numbers."""
        return math.fsum(self._done[number][0] for number in sorted(self._done))

    @property
    def samples(self) -> int:
        """Samples of the bundles that are done."""
        return sum(samples for _, samples in self._done.values())

    # -- assignment --------------------------------------------------------------------------------------

    def grant(
        self,
        number: int,
        incarnation: int,
        living: Collection[int],
        now_s: float,
        holds: Collection[int] = (),
        ahead: bool = False,
    ) -> Bundle | None:
        """Assign a bundle to a replica, or the one that it holds where its request is repeated; None: no work.

        Parameters
        ----------
        living
            Numbers of the replicas that share the work.
        holds, ahead
            See `held_bundles` and `prefetch` of `WorkRequest`.
        """
        for held in self._outstanding.values():
            if incarnation in held.holders and held.bundle.number not in holds:
                return held.bundle
        for has in self._assigned_earlier(incarnation, holds):
            self._record_attempt(has, number, incarnation, False, now_s)
        if ahead and self._left * self._share(number, living) < 2:  # the rest is for idle replicas
            return None
        backup = False
        bundle = self._retry(incarnation) or self._next(number, living)
        if bundle is None and self._backups and not ahead:
            bundle, backup = self._backup_task(incarnation), True
        if bundle is None:
            return None
        self._record_attempt(bundle, number, incarnation, backup, now_s)
        return bundle

    def _assigned_earlier(self, incarnation: int, holds: Collection[int]) -> list[Bundle]:
        """Bundles that an incarnation holds from another coordinator; others may have got them from this one since."""
        found = [bundle for bundle in self._unheld if bundle.number in holds]
        self._unheld = [bundle for bundle in self._unheld if bundle not in found]
        others = [self._outstanding[number] for number in holds if number in self._outstanding]
        return found + [one.bundle for one in others if incarnation not in one.holders]

    def _record_attempt(self, bundle: Bundle, number: int, incarnation: int, backup: bool, now_s: float) -> None:
        outstanding = self._outstanding.setdefault(bundle.number, _Outstanding(bundle))
        outstanding.holders[incarnation] = len(self.runs)
        self.runs.append(Attempt(number, bundle, backup, now_s))
        self.launched += backup
        self._last[number] = bundle.stop

    @property
    def _left(self) -> int:
        return sum(stop - start for start, stop in self._free)

    def _retry(self, incarnation: int) -> Bundle | None:
        """A bundle without a holder; where there is a choice, not one at which this incarnation has failed."""
        tried = self._tried
        one = min(self._unheld, key=lambda bundle: incarnation in tried.get(bundle.number, ()), default=None)
        if one is not None:
            self._unheld.remove(one)
        return one

    def _next(self, number: int, living: Collection[int]) -> Bundle | None:
        """A new bundle of free portions; None where none is left, or none may be begun yet."""
        if not self._free:
            return None
        if self._ordered:
            return self._next_in_order()
        half = int(self._left * self._share(number, living) / 2)
        start, stop = self._place(number)
        return self._cut(start, min(start + max(1, min(self._most, half)), stop))

    def _next_in_order(self) -> Bundle | None:
        """The first free portions; a bundle pushed ahead of its order waits at the shards, which limits the lead."""
        start, stop = self._free[0]
        number = start // self._most + 1
        if number - min(self._outstanding, default=number) >= MOST_AHEAD:
            return None
        return self._cut(start, min(start + self._most, stop))

    def _share(self, number: int, living: Collection[int]) -> float:
        """This replica's share of all replicas' speed; one of unknown speed counts as the average."""
        known = [1 / self._seconds_per_portion[one] for one in living if self._seconds_per_portion.get(one)]
        if not known:
            return 1 / max(1, len(living))
        average = math.fsum(known) / len(known)
        mine = 1 / self._seconds_per_portion[number] if self._seconds_per_portion.get(number) else average
        return mine / (average * max(1, len(living)))

    def _place(self, number: int) -> tuple[int, int]:
        """Where a replica continues: after its last bundle, else where no other continues, else in the widest gap."""
        last = self._last.get(number)
        for start, stop in self._free:
            if start == last:
                return start, stop
        ends = set(self._last.values())
        start, stop = max(self._free, key=lambda gap: (gap[0] not in ends, gap[1] - gap[0]))
        if start in ends:
            start += (stop - start) // 2
        return start, stop

    def _cut(self, start: int, stop: int) -> Bundle:
        gap = next(gap for gap in self._free if gap[0] <= start < gap[1])
        at = self._free.index(gap)
        self._free[at : at + 1] = [part for part in ((gap[0], start), (stop, gap[1])) if part[0] < part[1]]
        self._cuts += 1
        return Bundle(start // self._most + 1 if self._ordered else self._cuts, start, stop - start)

    def _backup_task(self, incarnation: int) -> Bundle | None:
        """A bundle of other holders: one with the fewest copies, and of those the one under way the longest.

        A bundle at which a replica has failed gets no further copy: it may be what makes them fail.
        """
        held = self._outstanding.values()
        others = [o for o in held if incarnation not in o.holders and o.bundle.number not in self._tried]
        return min(others, key=lambda o: (len(o.holders), min(o.holders.values()))).bundle if others else None

    # -- results -----------------------------------------------------------------------------------------

    def record_result(self, incarnation: int, result: BundleResult, now_s: float) -> bool:
        """Record a bundle that a replica has computed and all shards hold; False where another was first."""
        outstanding = self._outstanding.pop(result.bundle, None)
        if outstanding is None:  # done already; or its holder was removed, or another coordinator assigned it
            waiting = [bundle for bundle in self._unheld if bundle.number == result.bundle]
            if not waiting:
                return False
            self._unheld.remove(waiting[0])
            outstanding = _Outstanding(waiting[0])
        self._done[result.bundle] = result.loss_sum, result.samples
        for holder, index in outstanding.holders.items():
            won = holder == incarnation
            self._stopped(index, now_s, won)
            self.won += won and self.runs[index].backup
        return True

    def _stopped(self, index: int, now_s: float, won: bool = False) -> None:
        run = self.runs[index]
        start_s = max(run.start_s, self._stops.get(run.replica, run.start_s))  # it may have been requested ahead
        self.runs[index] = run._replace(start_s=min(start_s, now_s), stop_s=now_s, won=won)
        self._stops[run.replica] = now_s

    def failed_at(self, incarnation: int, number: int, reason: str, now_s: float) -> Bundle | None:
        """Record that a replica could not compute a bundle; the bundle, None where it does not hold it."""
        outstanding = self._outstanding.get(number)
        if outstanding is None or incarnation not in outstanding.holders:
            return None
        self._release(outstanding, incarnation, now_s)
        self._count(outstanding.bundle, incarnation, reason)
        return outstanding.bundle

    def holder_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """An incarnation has failed or left: the bundles that it alone held go to other replicas."""
        for outstanding in list(self._outstanding.values()):
            if incarnation in outstanding.holders:
                self._release(outstanding, incarnation, now_s)
                if died:  # no further copies, or restarted replicas hold it without a gap until none is left
                    self._tried.setdefault(outstanding.bundle.number, [])
                if died and not outstanding.holders:  # simultaneous failures of all copies count once
                    self._count(outstanding.bundle, incarnation, "the replicas that computed it failed")

    def _release(self, outstanding: _Outstanding, incarnation: int, now_s: float) -> None:
        self._stopped(outstanding.holders.pop(incarnation), now_s)
        if not outstanding.holders:
            del self._outstanding[outstanding.bundle.number]
            self._unheld.append(outstanding.bundle)

    def _count(self, bundle: Bundle, incarnation: int, reason: str) -> None:
        tried = self._tried.setdefault(bundle.number, [])
        tried.append(incarnation)
        if len(tried) >= ATTEMPTS:
            self.failed = bundle, reason

    # -- the picture -------------------------------------------------------------------------------------

    @property
    def began_s(self) -> float | None:
        """When its first bundle was assigned by this coordinator; None: none was."""
        return self.runs[0].start_s if self.runs else None

    def picture(self, end_s: float) -> list[list[Any]]:
        """For each attempt: replica, bundle, first portion, portions, whether a backup, start, stop, whether it won.

        Times are seconds since the pass began; `end_s` is the stop of attempts still under way.
        """
        began_s = end_s if self.began_s is None else self.began_s
        return [
            [
                run.replica,
                *run.bundle,
                run.backup,
                round(run.start_s - began_s, 6),
                round((end_s if run.stop_s is None else run.stop_s) - began_s, 6),
                run.won,
            ]
            for run in self.runs
        ]

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The settled state, JSON-serialisable; the picture is not kept."""
        return {
            "free": self._free,
            "again": [*self._unheld, *(o.bundle for o in self._outstanding.values())],
            "done": [[number, *of] for number, of in self._done.items()],
            "cuts": self._cuts,
            "tried": [[number, tried] for number, tried in self._tried.items()],
            "launched": self.launched,
            "won": self.won,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state: outstanding bundles are assigned again, under the same numbers."""
        self._free = [(int(start), int(stop)) for start, stop in state["free"]]
        self._unheld = [Bundle(*map(int, row)) for row in state["again"]]
        self._done = {int(number): (float(loss), int(samples)) for number, loss, samples in state["done"]}
        self._cuts = int(state["cuts"])
        self._tried = {int(number): [int(one) for one in tried] for number, tried in state["tried"]}
        self.launched, self.won = int(state["launched"]), int(state["won"])
