"""Search for the point where a run reaches a test accuracy, with few evaluations. No file, no clock.

A run leaves copies 0, 1, ... of its parameters; evaluating one takes longer than making it. Window i is the mean
accuracy of copies i, i + 1 and i + 2, positioned at the mean of their times and of their samples. The run reaches a
target where windows do, interpolated between the last window below it and the first window that reaches it.

A first pass evaluates `LOOKS` copies, evenly spaced, including the first and the last; they form the curve that is
drawn. Bisection then narrows the interval between the first of them whose window reaches the target and the one before
it. Accuracy is assumed to rise between two copies of the first pass: a crossing that is lost again within one such
interval is not detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

LOOKS = 12
WINDOW = 3
"""Evaluations whose mean must reach the target."""


@dataclass(frozen=True)
class RunPoint:
    """A position in a run.

    Attributes
    ----------
    seconds
        Since training started.
    samples
        Acknowledged until then, over all replicas.
    """

    seconds: float
    samples: float


@dataclass(frozen=True)
class EvaluatedPoint(RunPoint):
    """A position in a run, and the share of right answers on the test set there."""

    accuracy: float


class Course:
    """The test accuracy of one run, evaluated on demand, at most once per copy.

    Parameters
    ----------
    evaluate
        Returns the test accuracy of a copy, by its index.
    """

    def __init__(self, copies: list[RunPoint], evaluate: Callable[[int], float]) -> None:
        self.copies = copies
        self._evaluate = cache(evaluate)
        last, looks = len(copies) - 1, min(len(copies), LOOKS)
        places = [round(last * look / max(1, looks - 1)) for look in range(looks)]
        self.curve = [
            EvaluatedPoint(copies[place].seconds, copies[place].samples, self._evaluate(place))
            for place in dict.fromkeys(places)
        ]
        self._first_looks = sorted({min(place, last - WINDOW + 1) for place in places if last - WINDOW + 1 >= 0})

    def reaches(self, target: float) -> RunPoint | None:
        """The point where the target is reached; None where it is not, or there are fewer copies than a window has.

        Cost: `LOOKS` + O(log(copies / `LOOKS`)) evaluations where the curve rises.
        """
        before = -1
        for look in self._first_looks:
            # If a window reaches the target, no copy in it has more than three times the target's error rate.
            near = 1 - self._evaluate(look) <= WINDOW * (1 - target) + 1e-9
            if near and self._window(look) >= target:
                return self._between(before, look, target)
            before = look
        return None

    def _between(self, below: int, above: int, target: float) -> RunPoint:
        """The crossing between two windows; -1 is the position before the first."""
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (below, middle) if self._window(middle) >= target else (middle, above)
        reached = self._at(above)
        if below < 0:
            return reached
        low, high = self._window(below), self._window(above)
        share = (target - low) / (high - low) if high > low else 1.0
        last = self._at(below)
        return RunPoint(
            last.seconds + share * (reached.seconds - last.seconds),
            last.samples + share * (reached.samples - last.samples),
        )

    def _window(self, first: int) -> float:
        return sum(self._evaluate(place) for place in range(first, first + WINDOW)) / WINDOW

    def _at(self, first: int) -> RunPoint:
        copies = self.copies[first : first + WINDOW]
        return RunPoint(sum(copy.seconds for copy in copies) / WINDOW, sum(copy.samples for copy in copies) / WINDOW)
