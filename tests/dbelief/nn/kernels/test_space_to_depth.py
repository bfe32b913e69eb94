from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.nn.kernels import depth_to_space, space_to_depth

SIDES = st.integers(1, 4)


@given(SIDES, SIDES, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_there_and_back(rows: int, columns: int, s: int, channels: int, m: int) -> None:
    images = np.arange(float(m * rows * s * columns * s * channels)).reshape(m, rows * s, columns * s, channels)
    tiles = space_to_depth(images, s)
    assert tiles.shape == (rows, columns, s * s * channels, m)
    assert tiles.flags.c_contiguous
    assert not np.shares_memory(tiles, images)
    np.testing.assert_array_equal(depth_to_space(tiles, s), images)


def test_one_number_by_hand() -> None:
    images = np.random.default_rng(0).random((2, 6, 9, 4))
    tiles = space_to_depth(images, 3)
    assert tiles[1, 2, (2 * 3 + 1) * 4 + 3, 1] == images[1, 1 * 3 + 2, 2 * 3 + 1, 3]


def test_output_arrays_are_filled_in_place() -> None:
    images = np.random.default_rng(0).random((5, 6, 4, 3))
    both = np.full((3, 2, 12, 10), np.nan)
    tiles = space_to_depth(images, 2, out=both[..., 5:])
    assert np.shares_memory(tiles, both)
    np.testing.assert_array_equal(both[..., 5:], space_to_depth(images, 2))
    assert np.isnan(both[..., :5]).all()
    again = np.empty_like(images)
    assert depth_to_space(tiles, 2, out=again) is again
    np.testing.assert_array_equal(again, images)


def test_sides_must_divide() -> None:
    with pytest.raises(ValueError, match="6 x 5 pixels do not divide into tiles of 2 x 2"):
        space_to_depth(np.zeros((1, 6, 5, 3)), 2)
    with pytest.raises(ValueError, match="6 numbers a tile do not divide into 2 x 2 pixels"):
        depth_to_space(np.zeros((1, 1, 6, 3)), 2)
