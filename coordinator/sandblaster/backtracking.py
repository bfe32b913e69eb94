"""Backtracking line search of OWL-QN: each trial that is not accepted is followed by a shorter one.

A trial w' is accepted where f(w') <= f(w) + c v.(w' - w), with v the pseudo-gradient at w: the projection bends the
path, so the decrease that is wanted follows from the step taken, not from t. Slopes are not used, as the penalty has a
kink at each border of an orthant; so curvature y.s > 0 is not ensured, and `Lbfgs` leaves out pairs without it.

Source: Andrew and Gao 2007, section 3.2: c = 1e-4; t = 1, 1/2, 1/4, ..., and in the first iteration, whose direction
has no scale, steps of a tenth from length 1. Ours: there t is at most 1, as in the search without a penalty.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from .line_search import MOST_TRIALS


@dataclass
class Backtracking:
    """One search.

    Parameters
    ----------
    value
        f at the start.
    t
        The first trial, above 0.
    shrink
        Factor from one trial to the next, between 0 and 1.
    decrease
        c.

    Attributes
    ----------
    t
        The next trial, or the step that is accepted.
    trials
        Number of trials whose results were recorded.
    ended
        "" while the search runs; "accepted", or why no step is.
    """

    value: float
    t: float
    shrink: float = 0.5
    decrease: float = 1e-4
    trials: int = 0
    ended: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.t < math.inf:
            raise ValueError(f"the first step is {self.t:g}")
        if not 0 < self.shrink < 1:
            raise ValueError(f"steps shrink by {self.shrink:g}, must be between 0 and 1")

    @property
    def accepted(self) -> bool:
        """Whether `t` is an accepted step."""
        return self.ended == "accepted"

    def update(self, value: float, change: float) -> None:
        """Record f at the trial, and v.(w' - w). A trial that is not finite, or descends nowhere, was too far."""
        self.trials += 1
        if change < 0 and value <= self.value + self.decrease * change:
            self.ended = "accepted"
            return
        self.t *= self.shrink
        if self.trials >= MOST_TRIALS:
            self.ended = f"no step is good enough after {self.trials} trials"

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable; `Backtracking(**state)` restores it."""
        return asdict(self)
