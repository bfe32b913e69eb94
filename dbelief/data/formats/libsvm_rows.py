"""Rows of LIBSVM text as numbers, in one pass over the bytes of a block of whole lines, by compiled loops.

A block that holds anything but plain whole indices and decimal numbers is left to the caller as a whole. Every number
has the bits of `np.float32(float(text))`: see `decimal_number`, which imports numba.
"""

from typing import Any, NamedTuple

import numpy as np

from dbelief.arrays.jit import jit

from .decimal_number import decimal_number

HARD = 1 << 14
"""Values of a block that are left to Python's `float`; a block with more is left to the caller."""

_LF, _HASH, _COLON, _SPACE = 10, 35, 58, 32
_FIRST_BLANK, _LAST_BLANK = 9, 13  # tab to carriage return, line feed among them: what bytes.split() takes as blank
_PLUS, _MINUS, _DOT, _ZERO, _NINE = 43, 45, 46, 48, 57
_LABEL_DIGITS, _INDEX_DIGITS = 15, 10  # exact in a float64, and more than any index has
_INDICES = 1 << 31


class BlockRows(NamedTuple):
    """Rows of a block, valid until the next block is parsed.

    Attributes
    ----------
    labels : int64, shape (rows,)
        0 where labels are not read.
    ends : int64, shape (rows,)
        Values up to the end of each row.
    columns : int32, shape (values,)
        Indices as in the file, ascending within a row.
    values : float32, shape (values,)
        All finite.
    queries : bool
        Whether a row names a query.
    """

    labels: np.ndarray
    ends: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    queries: bool


class BlockParser:
    """Parser with the arrays that its results lie in.

    Parameters
    ----------
    labelled
        Whether rows have a label, a whole number; else a first word without a colon is skipped.
    first
        The lowest index that may be there, 0 or 1.
    """

    def __init__(self, labelled: bool, first: int) -> None:
        self._labelled, self._first = labelled, first
        self._hard = np.empty((HARD, 3), np.int64)
        self._size = 0

    def parse(self, block: bytes) -> BlockRows | None:
        """Parse whole lines; None where that takes Python's own parsers, or the lines are wrong.

        Memory: 11 bytes for each byte of the longest block so far, of which is used what its rows take.
        """
        self._grow(len(block))
        content = np.frombuffer(block, np.uint8)
        rows, count, held, queries = _scan(
            content, self._labelled, self._first, self._labels, self._ends, self._columns, self._values, self._hard
        )
        if rows < 0 or (held and b"_" in block):  # Python parses 1_0 as 10
            return None
        try:
            for place, start, stop in self._hard[:held].tolist():
                with np.errstate(over="ignore", under="ignore"):  # infinite values are detected right after
                    self._values[place] = float(block[start:stop])
        except ValueError:
            return None
        values = self._values[:count]
        if not np.isfinite(values).all():
            return None
        return BlockRows(self._labels[:rows], self._ends[:rows], self._columns[:count], values, bool(queries))

    def _grow(self, size: int) -> None:
        if size <= self._size:
            return
        self._size = size + size // 8  # blocks differ by the length of a line
        self._labels = self._ends = self._columns = self._values = np.empty(0)
        most = self._size // 2 + 1  # a row is one byte and a line feed, or more
        self._labels, self._ends = np.empty(most, np.int64), np.empty(most, np.int64)
        most = self._size // 4 + 1  # a value is `1:1` and a blank, or more
        self._columns, self._values = np.empty(most, np.int32), np.empty(most, np.float32)


@jit
def is_blank(byte: Any) -> Any:
    """Whether `bytes.split()` takes a byte as blank."""
    return byte == _SPACE or _FIRST_BLANK <= byte <= _LAST_BLANK


@jit
def word_end(content: Any, at: Any) -> Any:
    """Where the word that begins at `at` ends."""
    while at < len(content) and not is_blank(content[at]) and content[at] != _HASH:
        at += 1
    return at


@jit
def is_query(content: Any, at: Any) -> Any:
    """Whether `qid:` begins here, which names the query that a row is an answer to."""
    if at + 4 > len(content):
        return False
    return content[at] == 113 and content[at + 1] == 105 and content[at + 2] == 100 and content[at + 3] == _COLON


@jit
def _label(content: Any, start: Any, stop: Any) -> Any:
    """Return (whether this is a plain whole number, its value)."""
    negative = content[start] == _MINUS
    start += content[start] in (_PLUS, _MINUS)
    digits, value = 0, 0
    while start < stop and _ZERO <= content[start] <= _NINE:
        value = 10 * value + content[start] - _ZERO
        digits += 1
        start += 1
        if digits > _LABEL_DIGITS:
            return False, 0
    if start < stop and content[start] == _DOT:
        start += 1
        while start < stop and content[start] == _ZERO:
            start += 1
    return digits > 0 and start == stop, -value if negative else value


@jit
def _scan(
    content: Any, labelled: bool, first: Any, labels: Any, ends: Any, columns: Any, values: Any, hard: Any
) -> tuple[int, int, int, bool]:
    """Read all rows; return (rows, values, hard values, whether there are queries).

    Rows are -1 where the block is left to the caller.
    """
    at, n = 0, len(content)
    rows, count, held, queries = 0, 0, 0, False
    while at < n:
        if is_blank(content[at]):
            at += 1
            continue
        if content[at] == _HASH:
            while at < n and content[at] != _LF:
                at += 1
            continue
        stop, colon = word_end(content, at), False
        if labelled:
            plain, labels[rows] = _label(content, at, stop)
            if not plain:
                return -1, 0, 0, False
        else:
            labels[rows] = 0
            for place in range(at, stop):
                colon |= content[place] == _COLON
        if not colon:
            at = stop
        last, begins = first - 1, True
        while True:
            while at < n and content[at] != _LF and is_blank(content[at]):
                at += 1
            if begins and is_query(content, at):
                at, begins, queries = word_end(content, at), False, True
                continue
            begins = False
            if at == n or content[at] == _LF or content[at] == _HASH:
                break
            index, start = 0, at
            while at < n and at - start <= _INDEX_DIGITS and _ZERO <= content[at] <= _NINE:
                index = 10 * index + content[at] - _ZERO
                at += 1
            if at in (start, n) or content[at] != _COLON or not last < index < _INDICES:
                return -1, 0, 0, False
            at += 1
            stop = word_end(content, at)
            plain, values[count] = decimal_number(content, at, stop)
            if not plain:
                if held == len(hard):
                    return -1, 0, 0, False
                hard[held, 0], hard[held, 1], hard[held, 2] = count, at, stop
                held += 1
            columns[count] = index
            last, at = index, stop
            count += 1
        ends[rows] = count
        rows += 1
    return rows, count, held, queries
