"""Copies past the caches: the same bytes, wherever they begin and end."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.streaming import LINE, copy, warm_up


@given(st.integers(0, 700), st.integers(0, 70), st.integers(0, 70), st.sampled_from([np.uint8, np.float32, np.float64]))
def test_it_copies_what_numpy_does_and_nothing_else(length: int, there: int, here: int, kind: type[np.generic]) -> None:
    size = np.dtype(kind).itemsize
    source = np.random.default_rng(length).integers(0, 256, 8_000, np.uint8)
    target = np.random.default_rng(1).integers(0, 256, 8_000, np.uint8)
    begins = -target.ctypes.data % LINE + there // 64 * LINE + (there % 64) * size
    expected = target.copy()
    expected[begins : begins + length * size] = source[here : here + length * size]
    copy(target[begins : begins + length * size].view(kind), source[here : here + length * size].view(kind))
    np.testing.assert_array_equal(target, expected)


def test_it_is_compiled_before_it_is_needed() -> None:
    warm_up()
