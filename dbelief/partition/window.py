"""Boxes of whole numbers: which part of an array a rank writes, reads or sends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Window:
    """A half-open box, start to stop along each axis; it may lie anywhere, and be empty.

    Raises
    ------
    ValueError
        `start` and `stop` differ in length, or a stop lies before its start.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop) or any(b < a for a, b in zip(self.start, self.stop, strict=True)):
            raise ValueError(f"a window from {self.start} to {self.stop}: it must not end before it starts")

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Window:
        """All of an array."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def nothing(cls, axes: int) -> Window:
        """No cell of an array with so many axes."""
        return cls((0,) * axes, (0,) * axes)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """How many cells it has."""
        return math.prod(self.shape)

    def __and__(self, other: Window) -> Window:
        """What both have; an empty window where that is nothing.

        Raises ValueError where they differ in axes.
        """
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        return Window(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def __sub__(self, other: Window) -> list[Window]:
        """What only this one has, as windows that do not meet: at most two per axis."""
        common = self & other
        if not common.size:
            return [self] if self.size else []
        rest, start, stop = [], list(self.start), list(self.stop)
        for axis, (first, last) in enumerate(zip(common.start, common.stop, strict=True)):
            below, above = stop.copy(), start.copy()
            below[axis], above[axis] = first, last
            rest += [Window(tuple(start), tuple(below)), Window(tuple(above), tuple(stop))]
            start[axis], stop[axis] = first, last
        return [window for window in rest if window.size]

    def within(self, outer: Window) -> tuple[slice, ...]:
        """This window as an index into an array that holds `outer`, of which it must be a part."""
        return tuple(slice(a - c, b - c) for a, b, c in zip(self.start, self.stop, outer.start, strict=True))

    def along(self, shape: Sequence[int], first_axis: int) -> Window:
        """The window in an array with more axes: this one from `first_axis` on, all of `shape` along the others.

        Raises ValueError where the array has too few axes.
        """
        last_axis = first_axis + len(self.start)
        if first_axis < 0 or last_axis > len(shape):
            raise ValueError(f"window {self} does not fit the axes of {tuple(shape)} from axis {first_axis} on")
        before, after = tuple(shape[:first_axis]), tuple(shape[last_axis:])
        start = (0,) * len(before) + self.start + (0,) * len(after)
        return Window(start, before + self.stop + after)

    def select(self, array: Any, first_axis: int) -> Any:
        """A view of this window's cells in an array that may have more axes; see `along`."""
        return array[self.along(array.shape, first_axis).within(Window.whole(array.shape))]


def split(length: int, parts: int) -> list[tuple[int, int]]:
    """Cut an axis into `parts` half-open ranges in order, which differ by at most 1; some are empty if it is short."""
    if parts < 1 or length < 0:
        raise ValueError(f"{length} cells cannot be cut into {parts} parts")
    return list(pairwise(part * length // parts for part in range(parts + 1)))


def uncovered(window: Window, by: Iterable[Window]) -> list[Window]:
    """What of `window` none of the others covers, as windows that do not meet."""
    rest = [window] if window.size else []
    for other in by:
        rest = [left for part in rest for left in part - other]
    return rest
