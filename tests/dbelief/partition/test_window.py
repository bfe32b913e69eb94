"""Windows against boards of cells, and grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.partition import Grid, Window, split
from dbelief.partition.window import uncovered

SIDE = 8


@st.composite
def windows(draw: Any) -> Window:
    pairs = [sorted(draw(st.tuples(st.integers(0, SIDE), st.integers(0, SIDE)))) for _ in range(2)]
    return Window(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def _cells(*windows: Window) -> np.ndarray:
    """How many of the windows hold each cell."""
    board = np.zeros((SIDE, SIDE), int)
    for window in windows:
        board[tuple(slice(a, b) for a, b in zip(window.start, window.stop, strict=True))] += 1
    return board


@given(windows(), windows())
def test_and_and_minus_are_those_of_cells(one: Window, other: Window) -> None:
    a, b = _cells(one), _cells(other)
    assert one.size == a.sum()
    np.testing.assert_array_equal(_cells(one & other), a & b)
    np.testing.assert_array_equal(_cells(*(one - other)), a & (1 - b))
    assert all(part.size for part in one - other)


@given(windows(), st.lists(windows(), max_size=5))
def test_uncovered_is_the_complement_of_the_window(window: Window, by: list[Window]) -> None:
    np.testing.assert_array_equal(_cells(*uncovered(window, by)), _cells(window) * (_cells(*by) == 0))


@given(windows(), windows())
def test_within_finds_a_part_in_its_whole(part: Window, outer: Window) -> None:
    board = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    whole = Window.whole((SIDE, SIDE))
    common = part & outer
    if common.size:
        held = board[outer.within(whole)]
        np.testing.assert_array_equal(held[common.within(outer)], board[common.within(whole)])


def test_other_axes_go_along_whole() -> None:
    window = Window((1, 2), (3, 4))
    assert str(window.along((9, 5, 5, 7), 1)) == "[0:9, 1:3, 2:4, 0:7]"
    assert window.along((5, 5), 0) == window
    for shape, first_axis in (((5,), 0), ((5, 5), 1), ((5, 5), -1)):
        with pytest.raises(ValueError, match="does not fit the axes"):
            window.along(shape, first_axis)


@pytest.mark.parametrize(("start", "stop"), [((0,), (1, 2)), ((2,), (1,))])
def test_a_window_that_ends_before_it_starts_is_refused(start: tuple[int, ...], stop: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must not end before it starts"):
        Window(start, stop)


@given(st.integers(0, 50), st.integers(1, 12))
def test_parts_are_in_order_whole_and_nearly_equal(length: int, parts: int) -> None:
    ranges = split(length, parts)
    lengths = [b - a for a, b in ranges]
    assert [cell for a, b in ranges for cell in range(a, b)] == list(range(length))
    assert len(ranges) == parts
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, SIDE), st.integers(0, SIDE))
def test_a_grid_holds_each_cell_once(rows: int, columns: int, height: int, width: int) -> None:
    windows = Grid(rows, columns).windows(height, width)
    assert len(windows) == Grid(rows, columns).size
    np.testing.assert_array_equal(_cells(*windows), _cells(Window((0, 0), (height, width))))
    assert windows[-1].stop == (height, width)


def test_grids_go_row_by_row() -> None:
    assert list(map(str, Grid(2, 3).windows(5, 7))) == [
        *("[0:2, 0:2]", "[0:2, 2:4]", "[0:2, 4:7]"),
        *("[2:5, 0:2]", "[2:5, 2:4]", "[2:5, 4:7]"),
    ]


def test_wrong_grids_and_cuts_are_refused() -> None:
    with pytest.raises(ValueError, match="0 x 2 ranks"):
        Grid(0, 2)
    with pytest.raises(ValueError, match="3 cells cannot be cut into 0 parts"):
        split(3, 0)
