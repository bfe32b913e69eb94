"""A grid of ranks over the two spatial axes of an array (COTS HPC, section 4.2), each with a nearly equal part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .window import Window, split


@dataclass(frozen=True)
class Grid:
    """`rows` times `columns` ranks; rank r stands in row r // columns.

    Raises
    ------
    ValueError
        There is no rank.
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"a grid of {self.rows} x {self.columns} ranks: each must be 1 or more")

    @classmethod
    def of(cls, sides: Sequence[int]) -> Grid:
        """Of `[n]`, which is one row, or `[rows, columns]`."""
        rows, columns = sides if len(sides) == 2 else (1, *sides)
        return cls(rows, columns)

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return self.rows * self.columns

    def windows(self, height: int, width: int, block: int = 1) -> list[Window]:
        """Each rank's part of `height` x `width` cells, by rank; empty where there are fewer cells than ranks.

        Blocks of `block` x `block` cells, which divide both sides, stay whole.
        """
        return [
            Window((top * block, left * block), (bottom * block, right * block))
            for top, bottom in split(height // block, self.rows)
            for left, right in split(width // block, self.columns)
        ]
