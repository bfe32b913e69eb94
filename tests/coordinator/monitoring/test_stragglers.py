"""Detection of slow replicas, independent of waiting."""

from __future__ import annotations

import pytest

from coordinator.monitoring.stragglers import WINDOW_S, Stragglers


def told(paces: dict[int, tuple[float, float]], busy: tuple[str, ...] = ("compute", "push")) -> Stragglers:
    """Replicas that have worked for so many seconds on a sample, and waited for so many, over 40 s of reports."""
    stragglers = Stragglers(busy)
    for second in range(40):
        for replica, (work_s, wait_s) in paces.items():
            samples = 100 * second
            stragglers.note(replica, {"compute": work_s * samples, "wait": wait_s * samples}, samples, float(second))
    return stragglers


@pytest.mark.parametrize(
    ("paces", "slow"),
    [
        ({0: (0.01, 0.0), 1: (0.01, 0.0), 2: (0.03, 0.0)}, [2]),
        ({0: (0.01, 0.0), 1: (0.01, 0.0), 2: (0.0199, 0.0)}, []),
        ({0: (0.01, 0.0), 1: (0.05, 0.0)}, [1]),  # of two the median is the faster one
        ({0: (0.01, 0.09), 1: (0.1, 0.0), 2: (0.01, 0.09)}, [1]),  # in step: all need 0.1 s for a sample
        ({0: (0.01, 0.5), 1: (0.01, 0.0), 2: (0.01, 0.0)}, []),  # who waits is not slow
        ({3: (0.01, 0.0)}, []),
    ],
)
def test_it_is_their_own_work_that_counts(paces: dict[int, tuple[float, float]], slow: list[int]) -> None:
    stragglers = told(paces)
    assert stragglers.detect(list(paces)) == slow
    for replica, (work_s, _) in paces.items():
        assert stragglers.seconds_per_sample(replica) == pytest.approx(work_s)


def test_the_dead_are_not_compared_with() -> None:
    stragglers = told({0: (0.01, 0.0), 1: (0.01, 0.0), 2: (0.05, 0.0), 3: (0.06, 0.0)})
    assert stragglers.detect([0, 1, 2, 3]) == [2, 3]
    assert stragglers.detect([2, 3]) == []
    assert stragglers.detect([]) == []
    assert stragglers.detect([9]) == []


def test_old_samples_leave_the_window() -> None:
    stragglers, busy_s = Stragglers(("compute",)), 0.0
    for second in range(200):
        busy_s += 9.0 if second < 100 else 1.0
        stragglers.note(0, {"compute": busy_s}, 10 * second, float(second))
    assert stragglers.seconds_per_sample(0) == pytest.approx(0.1)
    stragglers.note(0, {"compute": 5.0}, 50, 200.0)  # the job went back to a set
    assert stragglers.seconds_per_sample(0) is None
    assert WINDOW_S < 100
