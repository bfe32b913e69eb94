"""Which rows of a bucket are due to be removed: those beyond a number, or without a push for some time.

A row's stamp is the number of its last push. Of each sixteenth of the time, the last push and when it came are kept, so
that a row needs no time of its own: it is removed up to a sixteenth later than it might be, and never sooner. What is
due follows from the pushes in their order and the times that came with them: so that a follower, or a bucket in another
shard, removes the same rows.
"""

from __future__ import annotations

import numpy as np

_MARKS = 16
_SPARE = 8
"""Of a full bucket an eighth of the rows are removed at a time: a removal is a pass over all of them."""


class Eviction:
    """Rows of one bucket that are due.

    Parameters
    ----------
    recent
        Rows beyond which the least recently pushed are removed; None: none are for their number.
    ttl_s
        Seconds since its last push after which a row is removed; None: none are for their age.

    Attributes
    ----------
    clock_s
        Whole seconds since 1970: the latest time that came with a push.
    """

    def __init__(self, recent: int | None, ttl_s: int | None) -> None:
        self._recent, self.ttl_s = recent, ttl_s
        self.clock_s = 0
        self._marks: list[tuple[int, int]] = []  # last push of a sixteenth of the time, and when it came

    @property
    def limits(self) -> bool:
        """Whether any row is ever due."""
        return self._recent is not None or self.ttl_s is not None

    def pushed(self, number: int) -> None:
        """Keep when this push came, in place of an earlier one of the same sixteenth of the time."""
        if self.ttl_s is not None:
            part_s = -(-self.ttl_s // _MARKS)
            if self._marks and self._marks[-1][1] // part_s == self.clock_s // part_s:
                self._marks.pop()
            self._marks.append((number, self.clock_s))

    def due(self, stamps: np.ndarray, number: int) -> np.ndarray | None:
        """(n,) bool of rows with (n,) uint32 stamps, each a push's number modulo 2^32; None where no row is due.

        `number`: of the newest push.
        """
        old = self._too_old(number)
        over = self._recent is not None and stamps.size > self._recent
        if old is None and not over:
            return None
        ages = np.uint32(number & 0xFFFFFFFF) - stamps
        gone = ages >= old if old is not None else np.zeros(stamps.size, np.bool_)
        if self._recent is not None and stamps.size - int(gone.sum()) > self._recent:
            gone = _all_but(ages, max(1, self._recent - self._recent // _SPARE))
        return gone if gone.any() else None

    def _too_old(self, number: int) -> int | None:
        """Pushes since the last push of a row whose time is over, or more; None where none is over."""
        if self.ttl_s is None:
            return None
        over = [one for one, at_s in self._marks if at_s <= self.clock_s - self.ttl_s]
        if not over:
            return None
        self._marks = self._marks[len(over) :]
        return number - over[-1]

    def saved(self) -> np.ndarray:
        """(2 n,) int64, from which `load` goes on."""
        return np.array([(0, self.clock_s), *self._marks], np.int64).reshape(-1)

    def load(self, saved: np.ndarray) -> None:
        """Go on from what `saved` gave."""
        (_, self.clock_s), *marks = [(int(number), int(at_s)) for number, at_s in saved.reshape(-1, 2)]
        self._marks = marks


def _all_but(ages: np.ndarray, stay: int) -> np.ndarray:
    """(n,) bool of all but `stay` rows, those of the lowest ages; of equal ones the last."""
    limit = np.partition(ages, stay - 1)[stay - 1]
    gone: np.ndarray = ages >= limit
    equal = np.flatnonzero(ages == limit)
    left = stay - int(np.count_nonzero(ages < limit))
    gone[equal[equal.size - left :]] = False
    return gone
