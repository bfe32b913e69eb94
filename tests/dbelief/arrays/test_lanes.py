"""Sums over lanes: the order that the module's description gives, number by number."""

import math

import numpy as np
import pytest

from dbelief.arrays.lanes import LANES
from dbelief.arrays.vector_kernels import compiled
from dbelief.core.vector_program import dots, together


def in_order(terms: np.ndarray) -> float:
    """Lane by lane, halves onto halves, then what follows the last whole row, in Python's floats."""
    whole = terms.size // LANES * LANES
    lanes = [0.0] * LANES
    for i, term in enumerate(terms[:whole].tolist()):
        lanes[i % LANES] += term
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[k] + lanes[k + half] for k in range(half)]
    total = lanes[0]
    for term in terms[whole:].tolist():
        total += term
    return total


@pytest.mark.parametrize("size", [0, 1, LANES - 1, LANES, LANES + 1, 5 * LANES + 3, 2048])
@pytest.mark.parametrize("kinds", [(np.float32, np.float32), (np.float64, np.float32), (np.float64, np.float64)])
def test_sums_are_added_in_the_order_that_is_written(size: int, kinds: tuple[type, type]) -> None:
    rng = np.random.default_rng(size)
    # Exponents far apart: another order gives other bits.
    drawn = rng.standard_normal((2, size)) * np.exp2(rng.integers(-30, 30, (2, size)))
    x, y = drawn[0].astype(kinds[0]), drawn[1].astype(kinds[1])
    assert compiled("dot")(x, y) == in_order(x.astype(np.float64) * y.astype(np.float64))
    assert compiled("norm1")(x) == in_order(np.abs(x.astype(np.float64)))


def test_scalars_are_added_in_order_and_keep_nan() -> None:
    program = [dots(("a", "b"), ("a", "a"))]
    parts = [[1e16, 1.0], [1.0, math.nan], [-1e16, 2.0]]
    total, other = together(program, parts)
    assert total == 0.0
    assert math.isnan(other)
    assert together(program, []) == [0.0, 0.0]
