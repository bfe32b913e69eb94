"""Copies past the caches: the same bytes, wherever they begin and end."""

import platform

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays import streaming_copy as module
from dbelief.arrays.streaming_copy import LARGE, LINE, streaming_copy, warm_up


@given(
    st.integers(0, 100), st.booleans(), st.integers(0, 70), st.integers(0, 70), st.sampled_from([np.uint8, np.float32])
)
def test_copy_matches_numpy(more: int, large: bool, there: int, here: int, kind: type[np.generic]) -> None:
    size = np.dtype(kind).itemsize
    length = more + large * LARGE // size
    source = np.random.default_rng(more).integers(0, 256, 2 * LARGE, np.uint8)
    target = np.random.default_rng(1).integers(0, 256, 2 * LARGE, np.uint8)
    begins = -target.ctypes.data % LINE + max(0, there - 35) * size
    expected = target.copy()
    expected[begins : begins + length * size] = source[here : here + length * size]
    streaming_copy(target[begins : begins + length * size].view(kind), source[here : here + length * size].view(kind))
    np.testing.assert_array_equal(target, expected)


def test_it_is_compiled_before_it_is_needed() -> None:
    module._stream.cache_clear()
    warm_up()
    assert module._stream.cache_info().currsize == (platform.machine() in ("x86_64", "AMD64"))
