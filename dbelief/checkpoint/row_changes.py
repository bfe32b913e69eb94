"""What has changed of a bucket's rows since an earlier set that has them all: the arrays of such a segment in a set.

A bucket has keys, stamps and rows (`ps_server/store/bucket.py`), each with the numbers of its rows one after another,
and arrays for its limits. Changes have the latter whole, and of the rows

changes/removed                     uint32 numbers of the earlier rows that were removed since
changes/updated                     uint32 numbers of the earlier rows that were pushed since
changes/stamps, changes/rows of ... those of the updated rows, then of the rows made since
changes/keys                        those of the rows made since

for rows keep their order: of the earlier ones those that stay come first. All are in the bits of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_CHANGES = "changes/"
_UPDATED, _REMOVED = f"{_CHANGES}updated", f"{_CHANGES}removed"
_BY_ROW = ("keys", "stamps", "rows of ")


class Piece(NamedTuple):
    """Where a set has all rows of a bucket.

    Attributes
    ----------
    place, file
        Of the set's files below the place of all sets, and the data file there.
    offset, crc32
        Of the bucket's bytes.
    vectors
        Name, element type and length of each array, in their order.
    """

    place: str
    file: str
    offset: int
    crc32: int
    vectors: list[list[Any]]

    @property
    def path(self) -> str:
        """The file below the place of all sets."""
        return f"{self.place}/{self.file}"


def is_path(path: object) -> bool:
    """Whether this may be the `path` of a piece: a file of a set, in its folder or in that of an attempt."""
    parts = path.split("/") if isinstance(path, str) else []
    return len(parts) in (2, 3) and all(part not in ("", ".", "..") and Path(part).name == part for part in parts)


def changes_of(
    arrays: Mapping[str, np.ndarray], changed: np.ndarray, updated: np.ndarray, removed: np.ndarray
) -> dict[str, np.ndarray]:
    """Copies of what has changed of a bucket.

    Parameters
    ----------
    arrays
        All of the bucket's.
    changed
        (n,) numbers of its rows that were pushed since, rising: first those that the earlier set has too.
    updated
        (m,) uint32 numbers of these m rows there.
    removed
        (r,) uint32 numbers of the earlier rows that are here no more.
    """
    found = {_UPDATED: updated.view(np.float32), _REMOVED: removed.view(np.float32)}
    for name, values in arrays.items():
        if name.startswith(_BY_ROW):
            taken = changed[updated.size :] if name == "keys" else changed
            found[_CHANGES + name] = _by_row(values, arrays["stamps"].size)[taken].reshape(-1)
        else:
            found[name] = values.copy()
    return found


def with_changes(earlier: Mapping[str, np.ndarray], changes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All arrays of a bucket, from those of an earlier set, which are overwritten, and from what has changed since.

    Memory: once more the bucket's.

    Raises
    ------
    KeyError, IndexError, ValueError
        The changes are those of other rows.
    """
    updated, removed = (changes[name].view(np.uint32) for name in (_UPDATED, _REMOVED))
    stay = np.ones(earlier["stamps"].size, np.bool_)
    stay[removed] = False
    whole: dict[str, np.ndarray] = {}
    for name in changes.keys() - {_UPDATED, _REMOVED}:
        if not name.startswith(_CHANGES):
            whole[name] = changes[name]
            continue
        own, values = name.removeprefix(_CHANGES), changes[name]
        held, first = _by_row(earlier[own], stay.size), 0
        if own != "keys":
            first = updated.size * held.shape[1]
            held[updated] = values[:first].reshape(updated.size, held.shape[1])
        whole[own] = np.concatenate([(held[stay] if removed.size else held).reshape(-1), values[first:]])
    return whole


def _by_row(values: np.ndarray, rows: int) -> np.ndarray:
    return values.reshape(rows, values.size // rows if rows else 0)
