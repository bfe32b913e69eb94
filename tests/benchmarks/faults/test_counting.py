"""What learners have counted, set against the samples that are acknowledged."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.faults import row_counting
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


@pytest.mark.parametrize(
    ("change", "found"), [(0.0, (0, 0, 0)), (-1.0, (1, 0, 1)), (2.0, (1, 2, 0)), (0.25, (1, 0, 0))]
)
def test_a_number_of_a_row_that_is_not_its_count(change: float, found: tuple[int, int, int]) -> None:
    counts = row_counting.wanted(2 * SAMPLES + 10, SEED)
    assert sum(counts.values()) == 2 * (2 * SAMPLES + 10), "two keys a sample"
    rows = {key: np.full(row_counting.WIDTH, -count, np.float32) for key, count in counts.items()}
    next(iter(rows.values()))[1] += np.float32(change)
    assert tuple(row_counting.compare(rows, counts).values()) == found


def test_rows_of_no_key_and_keys_without_a_row_are_wrong() -> None:
    missing, more = {5: 2}, {6: np.full(row_counting.WIDTH, -3.0, np.float32)}
    assert tuple(row_counting.compare({}, missing).values()) == (row_counting.WIDTH, 2, 0)
    assert tuple(row_counting.compare(more, {}).values()) == (row_counting.WIDTH, 0, 3)
