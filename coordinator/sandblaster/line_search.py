"""Line search for the strong Wolfe conditions, one trial at a time: the result of a trial gives the next trial.

A step t along a direction is accepted where phi(t) <= phi(0) + c1 t phi'(0) and |phi'(t)| <= c2 |phi'(0)|. Each trial
costs a pass over the batch, so the next one comes from a cubic or quadratic interpolation of the known points. It is
kept inside an interval that holds a minimiser and is guaranteed to shrink.

Near the optimum the rounding of phi hides the first condition. There the slopes decide: within `noise` of phi(0) they
replace the test of the values (Hager and Zhang 2005, approximate Wolfe conditions).

Source: More and Thuente 1994, and the choices of MINPACK-2's dcsrch; the paper leaves the search open (DistBelief
section 4.2 names `LineSearch` and no more).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

_EXTRAPOLATE = 1.1, 4.0
"""Range of the next step beyond the trial while no interval is found, in multiples of its distance to the best."""
_SHRINK = 0.66
"""An interval that has not shrunk to this share in two trials is halved."""
MOST_TRIALS = 20


class LinePoint(NamedTuple):
    """A step along the direction: its length, and phi and its slope there."""

    t: float
    value: float
    slope: float

    def tilted(self, by: float) -> LinePoint:
        """The same point of phi(t) - by t."""
        return LinePoint(self.t, self.value - by * self.t, self.slope - by)


_START = LinePoint(0.0, math.nan, math.nan)
"""In place of the search's start, which is not known yet."""


@dataclass
class LineSearch:
    """One line search.

    Parameters
    ----------
    start
        t = 0: phi there, and its slope, which must be negative.
    t
        The first trial, above 0.
    decrease, curvature
        c1 and c2.
    noise
        Relative to |phi(0)|: the possible difference of two evaluations of phi through rounding.

    Attributes
    ----------
    t
        The next trial, or the step that is accepted.
    trials
        Number of trials whose results were recorded.
    ended
        "" while the search runs; "accepted", or why no step is.
    """

    start: LinePoint
    t: float
    decrease: float = 1e-4
    curvature: float = 0.9
    noise: float = 1e-10
    trials: int = 0
    ended: str = ""
    best: LinePoint = _START
    other: LinePoint = _START
    bracketed: bool = False
    decreasing: bool = True
    """Until a trial has decreased enough and its slope is not negative, the search works on phi less the decrease."""
    width: float = math.inf
    width_before: float = math.inf

    def __post_init__(self) -> None:
        self.start = LinePoint(*self.start)
        if not self.start.slope < 0:
            raise ValueError(f"the slope is {self.start.slope:g}, and does not descend")
        if not 0 < self.t < math.inf:
            raise ValueError(f"the first step is {self.t:g}")
        self.best, self.other = (self.start if one is _START else LinePoint(*one) for one in (self.best, self.other))

    @property
    def accepted(self) -> bool:
        """Whether `t` is an accepted step."""
        return self.ended == "accepted"

    def update(self, value: float, slope: float) -> None:
        """Record the result of the trial at `t`. A trial that is not finite was too far."""
        self.trials += 1
        if not (math.isfinite(value) and math.isfinite(slope)):
            self.t = self.best.t + (self.t - self.best.t) / 10
            self._give_up_after_most()
            return
        trial = LinePoint(self.t, value, slope)
        if self._wolfe(trial):
            self.ended = "accepted"
            return
        enough = value <= self.start.value + self.decrease * self.t * self.start.slope
        if self.decreasing and enough and slope >= 0:
            self.decreasing = False
        self._next(trial, enough)
        self._give_up_after_most()

    def _give_up_after_most(self) -> None:
        if not self.ended and self.trials >= MOST_TRIALS:
            self.ended = f"no step is good enough after {self.trials} trials"

    def _wolfe(self, trial: LinePoint) -> bool:
        first, c1 = self.start, self.decrease
        flat = abs(trial.slope) <= self.curvature * -first.slope
        if trial.value <= first.value + c1 * trial.t * first.slope and flat:
            return True
        hidden = abs(trial.value - first.value) <= self.noise * abs(first.value)
        return hidden and self.curvature * first.slope <= trial.slope <= (2 * c1 - 1) * first.slope

    def _next(self, trial: LinePoint, enough: bool) -> None:
        """Update the interval with the trial, and choose the next."""
        best, other = self.best, self.other
        tilt = self.decrease * self.start.slope
        low, high = self._limits()
        if self.decreasing and not enough and trial.value <= best.value:
            near, far, t, bracketed = _step(
                best.tilted(tilt), other.tilted(tilt), trial.tilted(tilt), self.bracketed, low, high
            )
            near, far = near.tilted(-tilt), far.tilted(-tilt)
        else:
            near, far, t, bracketed = _step(best, other, trial, self.bracketed, low, high)
        self.best, self.other, self.bracketed = near, far, bracketed
        if bracketed:
            width = abs(far.t - near.t)
            if width >= _SHRINK * self.width_before:
                t = near.t + (far.t - near.t) / 2
            self.width_before, self.width = self.width, width
            inside = min(near.t, far.t) < t < max(near.t, far.t)
            if not inside and self.trials == 1:  # the cubic is all rounding: the trial was too far
                t, inside = near.t + (far.t - near.t) / 10, True
            if not inside or width <= 1e-15 * max(near.t, far.t):
                self.ended = "the interval is as small as the numbers allow"
        self.t = t

    def _limits(self) -> tuple[float, float]:
        """The bounds of the next step."""
        if self.bracketed:
            return min(self.best.t, self.other.t), max(self.best.t, self.other.t)
        near, far = _EXTRAPOLATE
        if self.trials == 1:
            return 0.0, self.t * (1 + far)
        stretch = self.t - self.best.t
        return self.t + near * stretch, self.t + far * stretch

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable; `LineSearch(**state)` restores it."""
        return asdict(self)


def _step(
    best: LinePoint, other: LinePoint, trial: LinePoint, bracketed: bool, low: float, high: float
) -> tuple[LinePoint, LinePoint, float, bool]:
    """More and Thuente's four cases: the interval's new ends, best first, the next trial, and whether it brackets."""
    turned = trial.slope * best.slope < 0
    if trial.value > best.value:  # a minimiser lies between
        cubic, quadratic = _cubic(best, trial), _quadratic(best, trial)
        t = cubic if abs(cubic - best.t) < abs(quadratic - best.t) else cubic + (quadratic - cubic) / 2
        return best, trial, t, True
    if turned:  # here too
        cubic, secant = _cubic(trial, best), _secant(trial, best)
        t = cubic if abs(cubic - trial.t) > abs(secant - trial.t) else secant
        return trial, best, t, True
    if abs(trial.slope) < abs(best.slope):
        t = _flatter(best, other, trial, bracketed, low, high)
    elif bracketed:
        t = _cubic(trial, other)
    else:
        t = high if trial.t > best.t else low
    return trial, other, t, bracketed


def _flatter(best: LinePoint, other: LinePoint, trial: LinePoint, bracketed: bool, low: float, high: float) -> float:
    """Next trial for a lower value and a flatter slope of the same sign: by cubic or secant, beyond the trial."""
    cubic = _cubic_beyond(trial, best)
    if cubic is None:
        cubic = high if trial.t > best.t else low
    secant = _secant(trial, best)
    if not bracketed:
        t = cubic if abs(cubic - trial.t) > abs(secant - trial.t) else secant
        return min(max(t, low), high)
    t = cubic if abs(cubic - trial.t) < abs(secant - trial.t) else secant
    limit = trial.t + _SHRINK * (other.t - trial.t)
    return min(t, limit) if trial.t > best.t else max(t, limit)


def _parts(a: LinePoint, b: LinePoint) -> tuple[float, float]:
    """Theta and gamma of the cubic through two points with their slopes."""
    theta = 3 * (a.value - b.value) / (b.t - a.t) + a.slope + b.slope
    scale = max(abs(theta), abs(a.slope), abs(b.slope))
    root = (theta / scale) ** 2 - (a.slope / scale) * (b.slope / scale)
    return theta, scale * math.sqrt(max(0.0, root))


def _cubic(a: LinePoint, b: LinePoint) -> float:
    """Where the cubic through both points has its minimum, computed from `a`."""
    theta, gamma = _parts(a, b)
    gamma = -gamma if b.t < a.t else gamma
    p, q = (gamma - a.slope) + theta, ((gamma - a.slope) + gamma) + b.slope
    return a.t + p / q * (b.t - a.t)


def _cubic_beyond(trial: LinePoint, best: LinePoint) -> float | None:
    """As `_cubic`, where the minimum lies on the trial's far side; None where the cubic has no minimum there."""
    theta, gamma = _parts(trial, best)
    gamma = -gamma if best.t < trial.t else gamma
    p, q = (gamma - trial.slope) + theta, (gamma + (best.slope - trial.slope)) + gamma
    if q == 0 or gamma == 0 or not p / q < 0:
        return None
    return trial.t + p / q * (best.t - trial.t)


def _quadratic(a: LinePoint, b: LinePoint) -> float:
    """Where the parabola through both values and the slope at `a` has its minimum."""
    return a.t + a.slope / ((a.value - b.value) / (b.t - a.t) + a.slope) / 2 * (b.t - a.t)


def _secant(a: LinePoint, b: LinePoint) -> float:
    """Where the slope would be 0 if it were linear."""
    return a.t + a.slope / (a.slope - b.slope) * (b.t - a.t)
