"""Which rows of a bucket have changed since an earlier set got all of them.

A row that was pushed has a later stamp. Rows keep their order: those of the set that are still there come first, so
that only their numbers in the set are kept, and no keys of removed rows.

Cost: nothing between sets, but once rows were removed four bytes for each row that the set has.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dbelief.checkpoint.row_changes import Piece

_STAMPS = (1 << 32) - 1


class FullWrite:
    """All rows of a bucket as a set got them.

    Parameters
    ----------
    number
        Number of the bucket's last push then.
    rows
        Its rows then.

    Attributes
    ----------
    piece
        Where the set has them; None while its part is being written.
    complete
        Whether the set is known to be complete.
    named
        Rows that the changes in later sets have named, all together.
    """

    def __init__(self, number: int, rows: int) -> None:
        self.number, self._rows = number, rows
        self.piece: Piece | None = None
        self.complete = False
        self.named = 0
        self._stay: np.ndarray | None = None  # those of its rows that are still there; None: all

    def removed(self, gone: np.ndarray) -> None:
        """Count out the bucket's rows where (rows,) bool `gone` is true, which are about to be removed."""
        stay = np.arange(self._rows, dtype=np.uint32) if self._stay is None else self._stay
        self._stay = stay[~gone[: stay.size]]

    def count(self, stamps: np.ndarray, number: int) -> int:
        """Rows that changes would name, where the bucket's have (n,) uint32 stamps and `number` was its last push."""
        removed = 0 if self._stay is None else self._rows - self._stay.size
        return int(np.count_nonzero(self._pushed(stamps, number))) + removed

    def changes(self, stamps: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `dbelief.checkpoint.row_changes.changes_of`: `changed`, `updated` and `removed`."""
        changed = np.flatnonzero(self._pushed(stamps, number))
        stay = np.arange(self._rows, dtype=np.uint32) if self._stay is None else self._stay
        removed = np.ones(self._rows, np.bool_)
        removed[stay] = False
        updated = stay[changed[: np.searchsorted(changed, stay.size)]]
        return changed, updated, np.flatnonzero(removed).astype(np.uint32)

    def _pushed(self, stamps: np.ndarray, number: int) -> np.ndarray:
        """(n,) bool of rows pushed since; after 2^32 pushes all are."""
        ages = np.uint32(number & _STAMPS) - stamps
        pushed: np.ndarray = ages < number - self.number
        return pushed


class RowHistory:
    """The full writes of a bucket that changes may be counted from: one of a complete set, and a later one.

    Attributes
    ----------
    writes
        In their order; the last one's set may have failed.
    newest
        Place of the newest set that has the bucket, or a part of such a set; "" without one.
    """

    def __init__(self) -> None:
        self.writes: list[FullWrite] = []
        self.newest = ""

    @property
    def base(self) -> FullWrite | None:
        """The full write of a complete set."""
        return self.writes[0] if self.writes and self.writes[0].complete else None

    @property
    def places(self) -> set[str]:
        """Places of the newest set, and of those that have all rows."""
        return {one.piece.place for one in self.writes if one.piece is not None} | {self.newest} - {""}

    def clear(self) -> None:
        """Forget all: the bucket has other rows, or what was written is damaged."""
        self.writes.clear()

    def removed(self, gone: np.ndarray) -> None:
        """See `FullWrite.removed`."""
        for write in self.writes:
            write.removed(gone)

    def settle(self, complete: Collection[str]) -> None:
        """Keep one full write: of the last, whose set is among the complete ones, or of the one before."""
        if self.writes and not self.writes[-1].complete:
            last = self.writes.pop()
            if last.piece is not None and last.piece.place in complete:
                last.complete = True
                self.writes = [last]

    def begin(self, number: int, rows: int) -> None:
        """A set is about to get all rows."""
        self.writes.append(FullWrite(number, rows))

    def end(self, piece: Piece | None) -> None:
        """The bucket is written, here; None: its part of the set failed."""
        if self.writes and self.writes[-1].piece is None:
            if piece is None:
                self.writes.pop()
            else:
                self.writes[-1].piece = piece
        if piece is not None:
            self.newest = piece.place
