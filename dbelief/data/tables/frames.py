"""Frames of columns with names, such as those of pandas, as rows of new samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dbelief.errors import DataError
from dbelief.job import nearest


def is_frame(rows: Any) -> bool:
    """Whether these rows have columns with names."""
    return hasattr(rows, "columns") and hasattr(rows, "to_numpy")


def columns_of(frame: Any, names: Sequence[str], where: str) -> list[np.ndarray]:
    """The columns of these names, in this order; others may be there.

    Raises
    ------
    DataError
        One is not there, or twice.
    """
    found = list(map(str, frame.columns))
    for name in names:
        if found.count(name) != 1:
            near = nearest(name, found) if name not in found else None
            how_many = f"{found.count(name) or 'no'} column{'s are' if name in found else ' is'}"
            raise DataError(f"{where}: {how_many} called {name!r}" + (f"; did you mean {near!r}?" if near else ""))
    return [frame[frame.columns[found.index(name)]].to_numpy() for name in names]
