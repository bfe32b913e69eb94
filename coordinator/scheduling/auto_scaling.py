"""The number of workers that follows the measured throughput (`scale: auto`). No clock, no socket.

A number is measured for `MEASURED_S` seconds and more, from `SETTLED_S` after its change on. Its throughput is the
samples in a second of one worker, times the number: workers that die and come back in between count for the seconds
that they train. Then the model of `dbelief advise` says what other numbers would bring, up to twice as many; numbers
that were measured themselves in the last `FORGOTTEN_S`, and those between two of them, are not left to it.

    more     a gain of `WORTH` is predicted: to the least number that has nearly all of it
    fewer    nearly nothing is lost: to the least number of which that is predicted
    back     the number before a change of which too little came; numbers in the direction of that change are then not
             tried for `FORGOTTEN_S`, twice as long after each further time

Changes are `every_s` apart. A direction does not return before its time, so numbers do not alternate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dbelief.job.scale import AutoScale

SETTLED_S, MEASURED_S, WINDOW_S = 15.0, 25.0, 90.0
"""After a change, until workers have started; least and longest time of a measurement. In seconds."""
WORTH, KEPT, LOST = 1.10, 1.05, 0.98
"""Predicted gain from which workers are added; measured gain from which they stay; share that fewer may keep."""
NEARLY = 0.95
"""Share of the best prediction that a smaller number suffices for."""
STILL, TAKEN_BACK = 0.95, "back"
"""Measured share of the throughput that fewer workers must keep; name of such a change."""
FORGOTTEN_S = 600.0
MOST_GROWTH = 2
"""Multiple of the present number up to which the model is asked."""

Factor = Callable[[int], float]
"""By number of workers, the predicted throughput as a multiple of the present one."""


class Totals(NamedTuple):
    """Totals of a job so far: samples, and seconds of all workers, of all incarnations. Any further value is kept."""

    samples: int
    worker_s: float
    kept: Any = None


class Looked(NamedTuple):
    """Totals, and when."""

    now_s: float
    totals: Totals


@dataclass(frozen=True)
class WorkersDecision:
    """A change of the number of workers, with the numbers that it was taken from.

    Attributes
    ----------
    why
        "more", "fewer" or "back".
    samples_per_s
        Throughput of `before` workers that all train.
    training
        Workers that trained, a mean over the measurement of `measured_s` seconds.
    factor
        Predicted multiple of it; of a change that is taken back the measured one.
    """

    before: int
    after: int
    why: str
    samples_per_s: float
    training: float
    measured_s: float
    factor: float


@dataclass
class _Trial:
    """A change whose effect is not measured yet."""

    before: int
    samples_per_s: float


@dataclass
class AutoScaling:
    """The number of workers of one job.

    Attributes
    ----------
    scale
        Bounds, and time between changes.
    count
        Present number.
    most
        Largest number.
    """

    scale: AutoScale
    count: int
    most: int
    _changed_s: float | None = None  # last change by this object, or by a person
    _settles_s: float = 0.0  # when the measurement of the present number begins
    _trial: _Trial | None = None
    _looks: deque[Looked] = field(default_factory=deque)
    _known: dict[int, tuple[float, float]] = field(default_factory=dict)  # samples/s by number, and when measured
    _barred: dict[bool, tuple[int, float]] = field(
        default_factory=dict
    )  # more (True) or fewer than so many: until when
    _times: dict[bool, int] = field(default_factory=dict)  # how often such were taken back

    def begin(self, now_s: float) -> None:
        """Begin to measure the present number."""
        self._looks.clear()
        self._settles_s = now_s + SETTLED_S

    def set_by_hand(self, count: int, now_s: float) -> None:
        """A person has set the number: it is measured like any other, and is not taken back."""
        if count != self.count:
            self.count, self._changed_s, self._trial = count, now_s, None
            self.begin(now_s)

    def look(self, totals: Totals, now_s: float) -> None:
        """Record the totals; after a loss of work, from which they fall, the measurement begins anew."""
        if self._looks and totals.samples < self._looks[-1].totals.samples:
            self.begin(now_s)
        if now_s < self._settles_s:
            return
        self._looks.append(Looked(now_s, totals))
        while len(self._looks) > 2 and self._looks[1].now_s < now_s - WINDOW_S:
            self._looks.popleft()

    @property
    def measurement(self) -> tuple[Looked, Looked] | None:
        """First and last totals of the measurement; None where it is too short."""
        if len(self._looks) < 2 or self._looks[-1].now_s - self._looks[0].now_s < MEASURED_S:
            return None
        return self._looks[0], self._looks[-1]

    def decide(self, model: Callable[[Any, Any], Factor | None], now_s: float) -> WorkersDecision | None:
        """A change of the number, if there is to be one now.

        Parameters
        ----------
        model
            Called with what was kept of the first and last totals: predictions from it; None: it cannot predict.
        """
        found = self.measurement
        if found is None or (self._changed_s is not None and now_s - self._changed_s < self.scale.every_s):
            return None
        (first_s, first), (last_s, last) = found
        worker_s, seconds = last.worker_s - first.worker_s, last_s - first_s
        if worker_s <= 0:
            return None
        rate, training = (last.samples - first.samples) / worker_s * self.count, worker_s / seconds
        self._known[self.count] = rate, now_s
        decision = self._taken_back(rate, now_s)
        if decision is None and (factor := model(first.kept, last.kept)) is not None:
            decision = self._chosen(factor, rate, now_s)
        if decision is None:
            return None
        after, why, gain = decision
        made = WorkersDecision(self.count, after, why, rate, training, seconds, gain)
        self._trial = None if why == TAKEN_BACK else _Trial(self.count, rate)
        self.count, self._changed_s = after, now_s
        self.begin(now_s)
        return made

    def _taken_back(self, rate: float, now_s: float) -> tuple[int, str, float] | None:
        """The number before the last change, where too little came of it."""
        trial, self._trial = self._trial, None
        if trial is None or trial.samples_per_s <= 0:
            return None
        gain, more = rate / trial.samples_per_s, self.count > trial.before
        if gain >= (KEPT if more else STILL):
            return None
        self._times[more] = self._times.get(more, 0) + 1
        self._barred[more] = trial.before, now_s + FORGOTTEN_S * 2 ** (self._times[more] - 1)
        return trial.before, TAKEN_BACK, gain

    def _chosen(self, factor: Factor, rate: float, now_s: float) -> tuple[int, str, float] | None:
        """Another number that is predicted to be better, or nearly as good and smaller."""
        now = self.count
        least, most = self.scale.min, min(self.most, MOST_GROWTH * now)
        factors = {
            count: self._expected(count, factor, rate, now_s)
            for count in range(least, most + 1)
            if self._allowed(count, now_s)
        }
        larger = {count: gain for count, gain in factors.items() if count > now}
        if larger and max(larger.values()) >= WORTH:
            enough = NEARLY * max(larger.values())
            after = min(count for count, gain in larger.items() if gain >= max(enough, WORTH))
            return after, "more", larger[after]
        best = max(known for known, at_s in self._known.values() if now_s - at_s < FORGOTTEN_S)  # has the present one
        smaller = {count: gain for count, gain in factors.items() if count < now and gain * rate >= LOST * best}
        if smaller:
            after = min(smaller)
            return after, "fewer", smaller[after]
        return None

    def _expected(self, count: int, factor: Factor, rate: float, now_s: float) -> float:
        """The multiple of the present throughput that a number gives: as measured lately, or as predicted.

        Between two numbers that were measured it is interpolated.
        """
        known = {one: found for one, (found, at_s) in self._known.items() if now_s - at_s < FORGOTTEN_S}
        below, above = (
            max((n for n in known if n <= count), default=None),
            min((n for n in known if n >= count), default=None),
        )
        if below is None or above is None or rate <= 0:
            return factor(count)
        share = (count - below) / (above - below) if above > below else 0.0
        return (known[below] + share * (known[above] - known[below])) / rate

    def _allowed(self, count: int, now_s: float) -> bool:
        """Whether no change in this direction was taken back lately."""
        limit, until_s = self._barred.get(count > self.count, (count, -math.inf))
        beyond = count > limit if count > self.count else count < limit
        return now_s >= until_s or not beyond
