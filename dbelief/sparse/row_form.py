"""What a row of a table consists of where it is kept, and the bytes of rows in an arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dbelief.arrays.row_index import slots_for

FIRST_ROWS = 64
"""Rows that an arena's index has room for from the beginning."""
KEY_BYTES = 8
_STAMP_BYTES = _SLOT_BYTES = _NUMBER_BYTES = 4


@dataclass(frozen=True)
class RowForm:
    """What a row consists of.

    Attributes
    ----------
    width
        Numbers of the row itself.
    state
        By name, the numbers of the rule's state beside each row, and what each starts with.
    """

    width: int
    state: Mapping[str, tuple[int, float]]

    @classmethod
    def of(cls, width: int, state: Mapping[str, float], by_row: bool) -> RowForm:
        """Rows of a width with a rule's state, by name its start; `by_row`: one number for the row, not for each."""
        return cls(width, {name: (1 if by_row else width, start) for name, start in state.items()})

    @property
    def stride(self) -> int:
        """Numbers of a row with its state."""
        return self.width + sum(count for count, _ in self.state.values())

    @cached_property
    def edges(self) -> np.ndarray:
        """int64: where the row begins, where each part of its state does, and where all ends."""
        return np.cumsum([0, self.width, *(count for count, _ in self.state.values())])

    def nbytes(self, rows: int, slots: int | None = None) -> int:
        """Bytes of so many rows of one arena: keys, stamps, rows with their state, and the index.

        `slots`: of the index; None: as many as it needs for these rows.
        """
        index = slots_for(max(FIRST_ROWS, rows)) if slots is None else slots
        return rows * (KEY_BYTES + _STAMP_BYTES + _NUMBER_BYTES * self.stride) + _SLOT_BYTES * index
