"""Where made-up runs reach a target, against looking at every copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.tools.experiments.compare.time_to_target import LOOKS, WINDOW, Course, RunPoint


class Run:
    """Accuracies of copies a second and 100 samples apart, and how often one was asked for."""

    def __init__(self, accuracies: Sequence[float]) -> None:
        self.accuracies = list(accuracies)
        self.asked: list[int] = []
        self.course = Course([RunPoint(float(n), 100 * n) for n in range(len(self.accuracies))], self._evaluate)

    def _evaluate(self, place: int) -> float:
        self.asked.append(place)
        return self.accuracies[place]


def by_hand(accuracies: Sequence[float], target: float) -> float | None:
    """Seconds at which the mean of three reaches the target, all of them looked at."""
    means = np.convolve(accuracies, np.ones(3) / 3, "valid")
    above = np.flatnonzero(means >= target)
    if not above.size:
        return None
    first = int(above[0])
    if first == 0:
        return 1.0
    low, high = means[first - 1 : first + 1]
    return float(first + (target - low) / (high - low))


def rising(count: int) -> list[float]:
    values: list[float] = (1 - 0.9 * np.exp(-np.arange(count) / (count / 8))).tolist()
    return values


@pytest.mark.parametrize("count", [3, 4, 11, 12, 13, 14, 40, 100, 1000])
@pytest.mark.parametrize("target", [0.05, 0.5, 0.9, 0.99, 0.9999])
def test_a_rising_run_is_placed_as_by_hand(count: int, target: float) -> None:
    accuracies = rising(count)
    run, wanted = Run(accuracies), by_hand(accuracies, target)
    found = run.course.reaches(target)
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert found.seconds == pytest.approx(wanted)
        assert found.samples == pytest.approx(100 * wanted)


def test_few_copies_are_evaluated_and_none_twice() -> None:
    run = Run(rising(1000))
    run.course.reaches(0.9)
    run.course.reaches(0.99)
    assert len(run.asked) == len(set(run.asked))
    # 91 copies lie between two of the first look: 7 halvings, each at most a window.
    assert len(run.asked) <= LOOKS + 2 * (7 + 2) * WINDOW


def test_first_evaluations_span_all_copies() -> None:
    run = Run(rising(100))
    places = [int(point.samples) // 100 for point in run.course.curve]
    assert len(places) == LOOKS
    assert places[0] == 0
    assert places[-1] == 99
    assert set(np.diff(places).tolist()) == {9}
    assert [point.accuracy for point in run.course.curve] == [run.accuracies[place] for place in places]


def test_one_lucky_evaluation_is_no_crossing() -> None:
    accuracies = [0.5] * 40
    accuracies[20] = 0.99
    assert Run(accuracies).course.reaches(0.9) is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_copies_than_a_window_reach_nothing(count: int) -> None:
    run = Run([1.0] * count)
    assert run.course.reaches(0.5) is None
    assert len(run.course.curve) == count


@given(st.lists(st.floats(0, 1), min_size=3, max_size=60), st.floats(0.1, 0.99))
def test_crossing_lies_between_windows_below_and_above(values: list[float], target: float) -> None:
    found = Run(values).course.reaches(target)
    means = np.convolve(values, np.ones(3) / 3, "valid")
    if found is None:
        return
    centre = found.seconds - 1.0
    low, high = int(np.floor(centre + 1e-9)), int(np.ceil(centre - 1e-9))
    assert means[high] >= target - 1e-9
    assert low == high or means[low] <= target + 1e-9
