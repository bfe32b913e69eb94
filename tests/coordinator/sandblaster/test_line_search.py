"""The line search, against MINPACK-2's as SciPy has it, and what it does where that one has no answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize._dcsrch import DCSRCH

from coordinator.sandblaster.line_search import MOST_TRIALS, LinePoint, LineSearch

Phi = Callable[[float], float]

FUNCTIONS: dict[str, tuple[Phi, Phi]] = {  # the first two are More and Thuente's
    "flat far away": (lambda t: -t / (t * t + 2), lambda t: (t * t - 2) / (t * t + 2) ** 2),
    "a narrow valley": (
        lambda t: (t + 0.004) ** 5 - 2 * (t + 0.004) ** 4,
        lambda t: 5 * (t + 0.004) ** 4 - 8 * (t + 0.004) ** 3,
    ),
    "a parabola": (lambda t: (t - 3) ** 2, lambda t: 2 * (t - 3)),
    "a steep wall": (lambda t: math.cosh(t - 2) - t, lambda t: math.sinh(t - 2) - 1),
}
CONDITIONS = [(1e-4, 0.9), (1e-3, 1e-3), (0.1, 0.1)]


def searched(search: LineSearch, phi: Phi, slope: Phi) -> list[float]:
    trials = []
    while not search.ended:
        trials.append(search.t)
        search.update(phi(search.t), slope(search.t))
    return trials


@pytest.mark.parametrize(("decrease", "curvature"), CONDITIONS)
@pytest.mark.parametrize("name", FUNCTIONS)
@given(exponent=st.floats(-3, 2))
@example(exponent=1.3998981154023067)
def test_trials_match_minpack(name: str, decrease: float, curvature: float, exponent: float) -> None:
    phi, slope = FUNCTIONS[name]
    expected: list[float] = []

    def noted(t: float) -> float:
        expected.append(t)
        return phi(t)

    first = 10.0**exponent
    theirs = DCSRCH(noted, slope, ftol=decrease, gtol=curvature, xtol=1e-15, stpmin=0, stpmax=1e50)
    *_, task = theirs(first, phi0=phi(0), derphi0=slope(0), maxiter=100)
    search = LineSearch(LinePoint(0, phi(0), slope(0)), first, decrease, curvature, noise=0)
    trials = searched(search, phi, slope)
    # At the bottom of a flat valley rounding decides whether a step or two more are made, all to the same place.
    most = max(len(trials), len(expected))
    ours, minpack = (row + row[-1:] * (most - len(row)) for row in (trials, expected))
    assert np.allclose(ours, minpack, rtol=1e-9)
    assert search.accepted == (task == b"CONVERGENCE")


def test_a_trial_that_is_not_finite_was_too_far() -> None:
    search = LineSearch(LinePoint(0, 1.0, -1.0), 100.0)
    search.update(math.inf, math.nan)
    assert search.t == pytest.approx(10.0)
    search.update(math.nan, 0.0)
    assert search.t == pytest.approx(1.0)
    search.update(0.5, -0.1)
    assert search.accepted


def test_search_ends_at_the_trial_limit() -> None:
    search = LineSearch(LinePoint(0, 0.0, -1.0), 1.0)
    trials = searched(search, lambda t: -t, lambda t: -1.0)  # falls forever
    assert len(trials) == MOST_TRIALS
    assert not search.accepted
    assert search.ended == f"no step is good enough after {MOST_TRIALS} trials"


def test_slopes_decide_where_rounding_hides_the_decrease() -> None:
    start = LinePoint(0, 1.0, -1e-12)
    hidden = LineSearch(start, 1.0, noise=1e-10)
    hidden.update(1.0 + 1e-15, 1e-13)
    assert hidden.accepted
    seen = LineSearch(start, 1.0, noise=0)
    seen.update(1.0 + 1e-15, 1e-13)
    assert not seen.accepted


def test_state_restores_the_search() -> None:
    phi, slope = FUNCTIONS["flat far away"]
    alone = LineSearch(LinePoint(0, phi(0), slope(0)), 0.01, 1e-3, 1e-3)
    handed = LineSearch(LinePoint(0, phi(0), slope(0)), 0.01, 1e-3, 1e-3)
    while not alone.ended:
        assert handed.t == alone.t
        handed = LineSearch(**json.loads(json.dumps(handed.state())))
        for search in (alone, handed):
            search.update(phi(search.t), slope(search.t))
    assert handed.accepted


@pytest.mark.parametrize(("slope", "t"), [(0.0, 1.0), (1.0, 1.0), (math.nan, 1.0), (-1.0, 0.0), (-1.0, math.inf)])
def test_a_search_needs_a_descent_and_a_step(slope: float, t: float) -> None:
    with pytest.raises(ValueError, match=r"slope is|first step is"):
        LineSearch(LinePoint(0, 1.0, slope), t)


def test_a_value_that_is_all_rounding_was_too_far() -> None:
    search = LineSearch(LinePoint(0.0, 1.0, -1.0), 1.0)
    search.update(1e17, 1e10)
    assert not search.ended
    assert 0 < search.t < 1
    LineSearch(**search.state())
