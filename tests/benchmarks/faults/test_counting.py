"""What learners have counted, set against the samples that are acknowledged."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.faults.counting import SAMPLES, compare, expected
from dbelief.data import permutation

SEED = 5


def test_the_first_samples_of_the_last_epoch_are_counted_once_more() -> None:
    counts = expected(2 * SAMPLES + 10, SEED)
    assert int(counts.sum()) == 2 * SAMPLES + 10
    assert sorted(np.flatnonzero(counts == 3)) == sorted(permutation(SAMPLES, SEED, 2)[:10])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (0.0, (0, 0, 0)),
        (-0.0, (0, 0, 0)),
        (-1.0, (1, 0, 1)),  # further from 0: counted twice
        (2.0, (1, 2, 0)),
        (0.25, (1, 0, 0)),  # no whole number
    ],
)
def test_a_number_that_is_not_its_count(change: float, found: tuple[int, int, int]) -> None:
    counts = expected(2 * SAMPLES + 10, SEED)
    rows = [(0 - counts).astype(np.float32) for _ in range(2)]
    rows[1][7] += np.float32(change)
    assert tuple(compare(rows, counts).values()) == found


def test_samples_that_nobody_has_trained_are_zero() -> None:
    assert tuple(compare([np.zeros(SAMPLES, np.float32)], expected(0, SEED)).values()) == (0, 0, 0)
